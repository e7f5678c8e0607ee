"""Where log records go: ours to standard error as plain lines, everybody else's to a file.

Invariants: standard error holds our lines only. The file is made when the first record for it comes, and
only by commands that may write into the data directory, or when that directory is there already.
"""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import Any

from txstream.cli.context import Cli, print_error

log = logging.getLogger(__name__)

# py4j and kazoo tell of every cut connection at WARNING or above, several lines each.
_FILE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class OurLines(logging.Handler):
    """Records of `txstream.*` on standard error, without time and level: they are sentences."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print_error(record.getMessage())
        except Exception:  # noqa: BLE001 - logging's own rule: a handler never raises
            self.handleError(record)


class LibraryLog(logging.FileHandler):
    """A file that is made with its folder when something is logged; `may_create_folder` or else only if
    the data directory exists."""

    def __init__(self, path: Path, *, may_create_folder: bool) -> None:
        super().__init__(path, encoding="utf-8", delay=True)
        self.path = path
        self.may_create_folder = may_create_folder
        self.setFormatter(logging.Formatter(_FILE_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is None:
            if not (self.may_create_folder or self.path.parent.parent.is_dir()):
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
        super().emit(record)


def set_up_logs(cli: Cli) -> None:
    """Called once for a command, before it does anything."""
    root = logging.getLogger()
    for handler in [*root.handlers]:
        if isinstance(handler, (LibraryLog, OurLines)):
            root.removeHandler(handler)
            handler.close()
    root.addHandler(LibraryLog(library_log(cli), may_create_folder=False))
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


def allow_log_folder() -> None:
    """From here on the command may make the data directory."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LibraryLog):
            handler.may_create_folder = True


def library_log(cli: Cli) -> Path:
    """This process's file for what libraries log."""
    return cli.log_dir / f"txstream-{os.getpid()}.log"
