"""Starts `txstream compare` from the page, as a process of its own, and says how far it is.

Invariants.
- One comparison runs at a time. It ends with the server.
- Addresses, which may hold passwords, go by the environment: the command line can be read by others.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from shlex import join
from typing import TYPE_CHECKING

from txstream.core.errors import UsageError
from txstream.settings import to_environment
from txstream.settings.given_secrets import is_secret_pair

if TYPE_CHECKING:
    from txstream.settings import Settings

FAULTS = ("all", "none", "batch", "partition", "crash")
_TARGET = re.compile(r"[\w.]+:\w+")
_LAST_LINES = 20
_ENDING_SECONDS = 5.0


@dataclass
class Started:
    """A comparison that was started here. `status` is the process's exit status, None while it runs."""

    command: str
    since: datetime
    process: subprocess.Popen[str] = field(repr=False)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    status: int | None = None


class Comparing:
    """See the module. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self.started: Started | None = None

    def words_of(self, form: Mapping[str, Sequence[str]]) -> list[str]:
        """Return the arguments of `txstream compare` that a form asks for. Raises UsageError."""
        asked = {name: values[0].strip() for name, values in form.items() if values and values[0].strip()}
        target, records, faults = (
            asked.get("target"),
            asked.get("records", "20000"),
            asked.get("faults", "all"),
        )
        if target is not None and not _TARGET.fullmatch(target):
            raise UsageError(f"the topology is {target!r}; expected MODULE:FACTORY")
        if not (records.isascii() and records.isdecimal()):
            raise UsageError(f"records is {records!r}; it must be a whole number")
        if faults not in FAULTS:
            raise UsageError(f"faults is {faults!r}; it is one of {', '.join(FAULTS)}")
        words = [] if target is None else [target]
        for parameter in asked.get("parameters", "").split():
            if "=" not in parameter:
                raise UsageError(f"the parameter {parameter!r} is not NAME=VALUE")
            if is_secret_pair(parameter):
                name = parameter.partition("=")[0]
                raise UsageError(
                    f"the parameter {name} has a secret in it, which a command line must not show; set a "
                    f"variable of the page's environment and write {name}=${{VARIABLE}}"
                )
            words.append(f"--parameter={parameter}")
        words += [f"--topic={asked['topic']}"] if "topic" in asked else []
        return [*words, f"--records={records}", f"--faults={faults}"]

    def start(self, words: Sequence[str]) -> None:
        """Start a comparison. Raises UsageError while one runs."""
        with self._lock:
            if self.started is not None and self.started.status is None:
                raise UsageError("a comparison runs already; start another one when it has ended")
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "txstream",
                    "compare",
                    *words,
                    f"--data-dir={self._settings.data_dir}",
                ],
                env={**os.environ, **to_environment(self._settings)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            self.started = Started(join(["txstream", "compare", *words]), datetime.now(UTC), process)
        threading.Thread(
            target=self._follow, args=(self.started,), name="txstream-ui-compare", daemon=True
        ).start()

    def _follow(self, started: Started) -> None:
        assert started.process.stdout is not None
        for line in started.process.stdout:
            started.lines.append(line.rstrip())
        started.status = started.process.wait()

    def mark(self) -> str:
        """Return a text that changes when the page would show something else."""
        one = self.started
        return "" if one is None else f"{one.since} {one.status} {list(one.lines)[-1:]}"

    def close(self) -> None:
        """End a comparison that still runs; it removes what it has made."""
        if self.started is None or self.started.status is not None:
            return
        self.started.process.terminate()
        try:
            self.started.process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self.started.process.kill()
