"""Where log records go: ours to standard error as plain lines, those of libraries to a file.

Invariants: only our own lines go to standard error. The file is made when the first record for it comes, and
only if the data directory exists: logging never makes that.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from txstream.cli.context import Cli, print_error, show_lines_as
from txstream.core.transaction import TransactionAttempt, Txid, epoch_of, in_hand

log = logging.getLogger(__name__)

# py4j and kazoo log every lost connection at WARNING or above, several lines each.
_FILE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


_OF_AN_ERROR = re.compile(r" failed and will be replayed|\bwaiting for ")


def _sentence(record: logging.LogRecord) -> str:
    """Return a record's message. Of a failed attempt and of a wait it says where the guide has the error."""
    message = record.getMessage()
    if record.levelno < logging.WARNING or not _OF_AN_ERROR.search(message):
        return message
    from txstream.cli import remedies  # seldom needed

    return message + remedies.pointer(remedies.of_words(message))


class OurLines(logging.Handler):
    """Writes records of `txstream.*` to standard error, without time and level: they are sentences."""

    as_json: JsonLines | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self.as_json is None:
                print_error(_sentence(record))
            else:
                sys.stderr.write(f"{self.as_json.format(record)}\n")
                sys.stderr.flush()
        except Exception:  # noqa: BLE001 - logging's own rule: a handler never raises
            self.handleError(record)


class JsonLines:
    """Turns lines and records into JSON objects: time, level, message, topology, txid, attempt and epoch.
    What is not known is null. A record's txid and attempt are those of the TransactionAttempt among its
    arguments, of its extra `about`, or of what its thread has in hand. `epoch` tells the run's own, once it
    has one, `ended_by` the attempt that has ended the run, which all further lines are about."""

    def __init__(self, topology: str) -> None:
        self.epoch: Callable[[], int | None] = lambda: None
        self.ended_by: Callable[[], TransactionAttempt | None] = lambda: None
        self._topology = topology

    def line(self, message: str) -> str:
        return self._document(datetime.now(UTC), "info", message, in_hand())

    def format(self, record: logging.LogRecord) -> str:
        """For a handler, as its formatter: what it returns goes out as it is."""
        given = record.args if isinstance(record.args, tuple) else ()
        found = (one for one in given if isinstance(one, TransactionAttempt))
        about = getattr(record, "about", None) or next(found, None) or in_hand()
        moment = datetime.fromtimestamp(record.created, UTC)
        return self._document(moment, record.levelname.lower(), _sentence(record), about)

    def _document(
        self, moment: datetime, level: str, message: str, about: TransactionAttempt | Txid | None
    ) -> str:
        about = about or self.ended_by()
        attempt = about if isinstance(about, TransactionAttempt) else None
        document = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": level,
            "message": message,
            "topology": self._topology,
            "txid": about if attempt is None else attempt.txid,
            "attempt": None if attempt is None else attempt.attempt,
            "epoch": self.epoch() if attempt is None else epoch_of(attempt.attempt),
        }
        return json.dumps(document, ensure_ascii=False)


class LibraryLog(logging.FileHandler):
    """A log file that is made, with its folder, at the first record, if the data directory exists."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", delay=True, errors="backslashreplace")
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
        """Report once that the log cannot be written. This never ends the thread that logs."""
        if not self._told:
            self._told = True
            print_error(f"the log {self.path} cannot be written: {sys.exception()}")


def set_up_logs(cli: Cli) -> None:
    """Set up logging. Called once for each command, before it does anything."""
    show_lines_as()
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


def write_as_json(lines: JsonLines) -> None:
    """Write all further lines of this command as JSON, the error that ends it, too."""
    for handler in logging.getLogger("txstream").handlers:
        if isinstance(handler, OurLines):
            handler.as_json = lines
    show_lines_as(lines.line)


def _route_warnings() -> None:
    """Show our own warnings, which are sentences about a topology, to the user; log those of libraries."""
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
    """Return this process's file for the records of libraries."""
    return cli.log_dir / f"txstream-{os.getpid()}.log"
