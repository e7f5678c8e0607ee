"""A check, its answer, and how all checks are asked side by side.

Invariant: each check has a deadline of its own, so a service that is silent hides no other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from txstream.core.errors import TxstreamError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Check:
    """What was looked at, whether it is right, what was found, and what mends it (None if it is right)."""

    name: str
    ok: bool
    message: str
    remedy: str | None = None

    def to_document(self) -> dict[str, Any]:
        """Return it as `txstream doctor --json` shows it."""
        return {"name": self.name, "ok": self.ok, "message": self.message, "remedy": self.remedy}


class WrongError(Exception):
    """What a check found wrong, and what mends it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


Look = Callable[[], str | Iterable[Check]]
"""Looks, and returns what is right in a sentence, or several checks. Raises WrongError, or the error with
which a run would fail."""


@dataclass
class Task:
    """A check to be asked. `remedy` is for errors that name none and for silence. `give_up` is called when
    the deadline has passed."""

    name: str
    look: Look
    remedy: str
    seconds: float
    give_up: Callable[[], None] = lambda: None
    found: list[Check] = field(default_factory=list)

    def run(self) -> None:
        try:
            found = self.look()
            checks = [Check(self.name, True, found)] if isinstance(found, str) else list(found)
        except WrongError as error:
            checks = [Check(self.name, False, str(error), error.remedy)]
        except TxstreamError as error:
            checks = [_wrong(self.name, str(error), self.remedy)]
        except Exception as error:
            log.debug("the check of %s failed", self.name, exc_info=True)
            checks = [Check(self.name, False, f"{type(error).__name__}: {error}", self.remedy)]
        self.found = checks


def ask_all(tasks: Sequence[Task]) -> list[Check]:
    """Ask all checks at once and return their answers in the order of the tasks."""
    began = time.monotonic()
    threads = [threading.Thread(target=task.run, name=f"doctor-{task.name}", daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    answers: list[Check] = []
    for task, thread in zip(tasks, threads, strict=True):
        thread.join(max(0.0, began + task.seconds - time.monotonic()))
        if thread.is_alive():
            task.give_up()
            answers.append(Check(task.name, False, f"no answer within {task.seconds:g} s", task.remedy))
        else:
            answers += task.found
    return answers


def _wrong(name: str, sentence: str, remedy: str) -> Check:
    """Our errors say what is wrong and, behind a semicolon, what to do."""
    what, _, to_do = sentence.partition("; ")
    return Check(name, False, what, to_do or remedy)
