"""`Cli`: what every command is given: its settings, and where to print.

Invariants: standard output carries only the data that a command was asked for. Messages, progress and logs go
to standard error. Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from txstream.cli.tables import print_pairs, print_table
from txstream.core.errors import UsageError
from txstream.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

    from txstream.cli.logs import JsonLines


@dataclass
class Cli:
    """One command's settings and output flags. `settings` holds only what the flags gave until `resolve`.
    `as_json_lines` is set if standard error is to have JSON."""

    settings: Settings = field(default_factory=Settings)
    as_json: bool = False
    debug: bool = False
    quiet: bool = False
    verbose: bool = False
    as_json_lines: JsonLines | None = None

    def resolve(self) -> Settings:
        """Resolve the settings: flag, environment, `txstream.toml`, running embedded services, in this order.
        Raises UsageError."""
        self.settings = self.settings.resolve()
        return self.settings

    @property
    def log_dir(self) -> Path:
        """Where the logs of Spark, Kafka and ZooKeeper go."""
        return self.settings.log_dir

    def say(self, message: str) -> None:
        """Print a message for a person on standard error, unless --quiet is given."""
        if not self.quiet:
            print_error(message)

    def error_console(self) -> Console:
        """A rich console on standard error, for progress bars."""
        from rich.console import Console

        return Console(stderr=True, highlight=False, quiet=self.quiet)

    def print(self, line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def print_json(self, document: Any) -> None:
        """Print the one JSON document of a command with --json."""
        self.print(json.dumps(document, indent=2, ensure_ascii=False))

    def print_line(self, document: Any) -> None:
        """Print a JSON document in one line, for a command that goes on."""
        self.print(json.dumps(document, ensure_ascii=False))

    print_pairs = staticmethod(print_pairs)
    print_table = staticmethod(print_table)


def print_error(line: str) -> None:
    """Print one line on the current standard error: a progress bar replaces it while it is shown."""
    sys.stderr.write(f"{_shown_as(line)}\n")
    sys.stderr.flush()


def _as_it_is(line: str) -> str:
    return line


_shown_as: Callable[[str], str] = _as_it_is


def show_lines_as(shown: Callable[[str], str] = _as_it_is) -> None:
    """Have every line of this process on standard error changed like this, or no longer."""
    global _shown_as
    _shown_as = shown


def ask(question: str, *, yes: bool) -> None:
    """Ask before something is lost. Returns once a person or `yes` has confirmed it.

    The question needs two terminals: standard error to show it, standard input to answer it. Raises
    UsageError if either is not a terminal, and ends the command with status 1 after a no.
    """
    if yes:
        return
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        raise UsageError(
            f"{question} Nothing was changed: there is no terminal to ask at; add --yes (-y) to go ahead"
        )
    if not typer.confirm(question, err=True):
        print_error("txstream: nothing was changed")
        raise typer.Exit(1)
