"""How a running topology is, in the words that the page, `status`, the metrics and the output of a run share.

`health` is the one rule. Whoever asks it reads its arguments where it can: the driver from its own memory,
others from what the leader has noted and from the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from txstream.core.failing_batch import SEARCHED
from txstream.core.wording import counted

if TYPE_CHECKING:
    from txstream.core.failing_batch import FailingBatch, LeftOut, Wait
    from txstream.inspect.snapshot import Snapshot

_LATELY = timedelta(minutes=1)


class Word(StrEnum):
    """The states of health, the worst last."""

    HEALTHY = "healthy"
    PAUSED = "paused"
    LEAVING_OUT = "leaving out records"
    RETRYING = "retrying a batch"
    WAITING = "waiting"
    FAILING = "failing"


@dataclass(frozen=True, slots=True)
class Health:
    """A word, and in a sentence what is behind it; empty where the word says it all."""

    word: Word
    told: str = ""

    def __str__(self) -> str:
        if not self.told or self.word is Word.WAITING:
            return self.told or str(self.word)
        return f"{self.word}: {self.told}"


def health(
    waits: Sequence[Wait],
    failing: FailingBatch | None,
    left_out: LeftOut | None = None,
    *,
    is_paused: bool = False,
) -> Health:
    """Return how a topology is that a driver leads. `waits` are what the driver waits for, `failing` is the
    batch that failed last and is not committed yet, `left_out` the newest one that left out records; what is
    more than a minute ago is over.

    It is failing only if the next attempt may end as the last one did: an outage is waited for, and what one
    record causes is looked for."""
    looking = [one.told for one in searches(waits)]
    if looking:
        return Health(Word.LEAVING_OUT, "; ".join(looking))
    if failing is not None and not failing.may_pass:
        return Health(Word.FAILING, _attempts(failing))
    away = outages(waits)
    if away:
        return Health(Word.WAITING, f"waiting for {'; '.join(map(str, away))}")
    if failing is not None:
        return Health(Word.RETRYING, _attempts(failing))
    if is_paused or any(map(_is_pause, waits)):
        return Health(Word.PAUSED)
    if left_out is not None and left_out.at is not None and datetime.now(UTC) - left_out.at < _LATELY:
        return Health(Word.LEAVING_OUT, f"{counted(left_out.records, 'record')} of txid {left_out.txid}")
    return Health(Word.HEALTHY)


def outages(waits: Iterable[Wait]) -> list[Wait]:
    """Return what is waited for because it is away: neither the end of a pause nor that of a search."""
    return [one for one in waits if not (_is_pause(one) or is_search(one.what))]


def searches(waits: Iterable[Wait]) -> list[Wait]:
    """Return the searches for records that are to be left out."""
    return [one for one in waits if is_search(one.what)]


def is_search(what: str) -> bool:
    """Whether what is waited for is the end of a search for records that are to be left out."""
    return what.startswith(SEARCHED)


def _is_pause(wait: Wait) -> bool:
    return wait.because.startswith("paused by ")


def health_in(snapshot: Snapshot, left_out: LeftOut | None) -> Health:
    """Return how a topology that is led is, by what is stored."""
    is_paused = snapshot.in_force.paused is not None
    return health(snapshot.waiting, snapshot.failing, left_out, is_paused=is_paused)


def _attempts(batch: FailingBatch) -> str:
    return f"{counted(batch.failed_attempts, 'attempt')} of txid {batch.txid} failed"
