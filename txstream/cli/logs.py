"""Where log records go: ours to standard error as plain lines, everybody else's to a file.

Invariants: standard error holds our lines only. The file is made when the first record for it comes, in a
data directory that is there: no record makes one.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from txstream.cli.context import Cli, print_error

log = logging.getLogger(__name__)

# py4j and kazoo log every cut connection at WARNING or above, several lines each.
_FILE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class OurLines(logging.Handler):
    """Records of `txstream.*` on standard error, without time and level: they are sentences."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print_error(record.getMessage())
        except Exception:  # noqa: BLE001 - logging's own rule: a handler never raises
            self.handleError(record)


class LibraryLog(logging.FileHandler):
    """A file that is made with its folder when something is logged, if the data directory is there."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", delay=True)
        self.path = path
        self._told = False
        self.setFormatter(logging.Formatter(_FILE_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is None and not self.path.parent.parent.is_dir():
            return
        try:
            if self.stream is None:
                self.path.parent.mkdir(exist_ok=True)
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """A log that cannot be written is reported once, and never ends the thread that logs."""
        if not self._told:
            self._told = True
            print_error(f"the log {self.path} cannot be written: {sys.exception()}")


def set_up_logs(cli: Cli) -> None:
    """Called once for a command, before it does anything."""
    root = logging.getLogger()
    for handler in [*root.handlers]:
        if isinstance(handler, (LibraryLog, OurLines)):
            root.removeHandler(handler)
            handler.close()
    root.addHandler(LibraryLog(library_log(cli)))
    _route_warnings()
    ours = logging.getLogger("txstream")
    for handler in [*ours.handlers]:
        ours.removeHandler(handler)
    ours.addHandler(OurLines())
    ours.setLevel(
        logging.DEBUG if cli.debug and cli.verbose else logging.INFO if cli.verbose else logging.WARNING
    )


def _route_warnings() -> None:
    """Our own, of a topology, are sentences for the user; all others are records of libraries."""
    logging.captureWarnings(False)
    logging.captureWarnings(True)
    to_library_log = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
        if category.__module__.startswith("txstream."):
            log.warning("%s", message)
        else:
            to_library_log(message, category, *where, **options)

    warnings.showwarning = show


def library_log(cli: Cli) -> Path:
    """This process's file for what libraries log."""
    return cli.log_dir / f"txstream-{os.getpid()}.log"
