"""`Cli`: what every command has in its hand: settings, and where to say things.

Invariants: standard output carries the data that a command was asked for and nothing else; messages,
progress and logs go to standard error. Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from txstream.api.errors import UsageError
from txstream.cli.tables import print_pairs, print_table
from txstream.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console


@dataclass
class Cli:
    """One command's settings and manners. `settings` are those of the flags until `resolve` is called."""

    settings: Settings = field(default_factory=Settings)
    as_json: bool = False
    debug: bool = False
    quiet: bool = False
    verbose: bool = False

    def resolve(self) -> Settings:
        """Flag, environment, `txstream.toml`, running embedded services. Raises UsageError."""
        self.settings = self.settings.resolve()
        return self.settings

    @property
    def log_dir(self) -> Path:
        """Where the logs of Spark, Kafka and ZooKeeper go."""
        return self.settings.log_dir

    def say(self, message: str) -> None:
        """A message for a person, on standard error; not with --quiet."""
        if not self.quiet:
            print_error(message)

    def error_console(self) -> Console:
        """rich on standard error, for progress bars."""
        from rich.console import Console

        return Console(stderr=True, highlight=False, quiet=self.quiet)

    def print(self, line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def print_json(self, document: Any) -> None:
        """The one JSON document of a command with --json."""
        self.print(json.dumps(document, indent=2, ensure_ascii=False))

    print_pairs = staticmethod(print_pairs)
    print_table = staticmethod(print_table)


def print_error(line: str) -> None:
    """One line on standard error, wherever that is now: a progress bar takes it over while it is shown."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def ask(question: str, *, yes: bool) -> None:
    """Ask before something is lost; returns once it is confirmed, by a person or by `yes`.

    The question needs a terminal at both ends: standard input to answer at, standard error to be seen on.
    Raises UsageError where there is none, and ends the command with status 1 after a no.
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
