"""Which failures are replayed, which count as bugs, how long attempts may take, and what is reported."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from itertools import islice
from typing import Any

from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import (
    BatchFailedError,
    BatchTimeoutError,
    BoltError,
    LateRecordError,
    ServiceUnavailableError,
    TupleError,
    TxstreamError,
)
from txstream.core.transaction import TransactionAttempt
from txstream.core.waiting import BACKOFF
from txstream.core.wording import counted, storable
from txstream.engine.batch.executor_failures import OF_A_RECORD

WARM_UP_SECONDS = 30.0
"""What a run's first attempts, and those after a timeout, have on top of the message timeout: Python workers
start, Java compiles. Without it, a worker that takes longer than the timeout to start is cancelled for ever.
Measured: 5 to 8 s on two busy cores for a job that then takes 0.25 s. A cluster may have to start executors.
"""

_KEPT_FAILURES = 10
_LONGEST_TRACEBACK = 4_000  # characters; its end says most
_KEPT_TRACEBACKS = 12_000  # characters, of one txid
# For all attempts of a batch together: the ledger row of a wide topic must not grow with every failure.
_KEPT_RANGES = 500
_NOTED_RANGES = 100  # the same for ZooKeeper
_LONGEST_MESSAGE = 1_000
_MOST_REASONS = 20
_OTHER_REASONS = "other reasons"
_ATTEMPT = re.compile(r"txid \d+ attempt \d+\.\d+|micro-batch \d+")
_FRAMES = re.compile(r'(?:Traceback.*\n|  File ".*", line \d+, in .*\n(?:    .*\n)*|  \[Previous line .*\n)*')
_OF_ONE_ATTEMPT = re.compile(r"^the batch, |, task \d+(?=:)|, while processing .*", re.DOTALL)


class Verdict(Enum):
    """What a failed attempt means for the run."""

    REPLAY = "replay"  # expected, or an outage: without limit
    BUG = "bug"  # replayed too, but only `max_attempts` times
    FATAL = "fatal"  # the same data would fail again, or another driver leads


def judge(error: BaseException, *, is_writing: bool = False) -> Verdict:
    """Return what an attempt's error means. `is_writing`: it came from the transactions of the states, where
    only outages and dead tasks are replayed: data that cannot be stored now cannot be stored next time."""
    if getattr(error, "ends_run", False):
        return Verdict.FATAL
    if isinstance(error, (BatchFailedError, ServiceUnavailableError)):
        return Verdict.REPLAY
    if isinstance(error, BoltError):
        return Verdict.BUG
    if is_writing or not isinstance(error, Exception):
        return Verdict.FATAL
    if isinstance(error, TxstreamError) and not isinstance(error, TupleError):
        return Verdict.FATAL
    return Verdict.BUG


def may_be_a_record(error: BaseException) -> bool:
    """Return whether one record can make an attempt fail like this: a bug, or data that nothing can decode or
    store. Not an outage, and not a BatchFailedError, with which user code asks for another attempt."""
    return isinstance(error, OF_A_RECORD) or judge(error) is Verdict.BUG


class AttemptTime:
    """How long a run's next attempt may take. The first attempts, and those after a timeout (which ends
    Python workers), have `warm_up_seconds` on top of the message timeout."""

    def __init__(self, timeout_seconds: float, warm_up_seconds: float) -> None:
        self.seconds = timeout_seconds + warm_up_seconds
        self._timeout_seconds = timeout_seconds
        self._warm_up_seconds = warm_up_seconds

    def of_trial(self, share: float | None) -> float:
        """Return how long a trial may take that has a share of the message timeout; None: all of a batch."""
        return self.seconds if share is None else self._timeout_seconds * share

    def ended(self, error: BaseException | None = None) -> None:
        """Note that an attempt of this run has ended."""
        is_warm = not isinstance(error, BatchTimeoutError)
        self.seconds = self._timeout_seconds + (0 if is_warm else self._warm_up_seconds)

    def is_over(self, attempt: TransactionAttempt, done: str, seconds: float) -> BatchTimeoutError:
        """Return the error that an attempt was not `done` within so many seconds."""
        warm_up = " and the workers' warm-up" if seconds > self._timeout_seconds else ""
        return BatchTimeoutError(
            f"{attempt} was not {done} within {seconds:g} s (message_timeout_seconds{warm_up})"
        )


def reason_of(error: BaseException | str) -> str:
    """Return why an attempt failed, in the same words for every attempt: without number, task and tuple."""
    text = _ATTEMPT.sub("the batch", str(error) or type(error).__name__)
    return shortened(_OF_ONE_ATTEMPT.sub("", text))


def reason_without_data(error: BaseException, *, is_output: bool = False) -> str:
    """As `reason_of`, for ZooKeeper, which is no place for data. User code's errors, whose messages may hold
    anything, are given by kind and place only. `is_output`: the run's output says no more either."""
    told = getattr(error, "without_data", None)
    if not told and isinstance(error, (BatchFailedError, ServiceUnavailableError)):
        return reason_of(error)
    component = getattr(error, "component", None)
    told = told or f"component {component!r}: " * bool(component) + type(error).__name__
    return told if is_output else f"{told}; the run's output has the message"


def count_reason(reasons: Counter[str], reason: str, times: int = 1) -> int:
    """Count a reason, and return how often it came. Past a number of reasons, others are counted together."""
    if reason not in reasons and len(reasons) >= _MOST_REASONS:
        reason = _OTHER_REASONS
    reasons[reason] += times
    return reasons[reason]


def shortened(message: str) -> str:
    """Return a message, cut to the length that is kept."""
    return storable(message, _LONGEST_MESSAGE)


@dataclass
class TxidFailures:
    """How often a txid has failed in this run. `last` has its latest failures, for the ledger and for
    ZooKeeper, and what those attempts held; `reasons` is for ZooKeeper; `timeouts` counts timeouts in a row.
    `by_records`: it failed in a way that a record can cause; `in_commit`: while its states were written.
    `by_service`: it failed last because a service was away. `hides_data`: of its failures nothing is told or
    kept that a record may hold."""

    hides_data: bool = False
    attempts: int = 0
    bugs: int = 0
    late: int = 0
    timeouts: int = 0
    by_records: bool = False
    by_service: bool = False
    in_commit: bool = False
    reasons: Counter[str] = field(default_factory=Counter)
    last_error: str | None = None
    last: deque[tuple[Mapping[str, Any], Mapping[str, Any], BatchMetas[Any]]] = field(
        default_factory=lambda: deque(maxlen=_KEPT_FAILURES)
    )

    def add(
        self,
        error: BaseException,
        attempt: TransactionAttempt | None = None,
        held: BatchMetas[Any] | None = None,
        *,
        is_writing: bool = False,
    ) -> None:
        """Add a failure. Without an `attempt` it is counted, but not kept."""
        self.attempts += 1
        is_bug, has_looked = judge(error) is Verdict.BUG, self.by_records or not self.hides_data
        self.bugs += is_bug
        self.late += isinstance(error, LateRecordError)
        self.by_service = isinstance(error, ServiceUnavailableError)
        if may_be_a_record(error):
            self.by_records = True
            self.in_commit = self.in_commit or is_writing
        self.timeouts = self.timeouts + 1 if isinstance(error, BatchTimeoutError) else 0
        self.last_error = (
            reason_without_data(error, is_output=True) if self.hides_data else storable(str(error))
        )
        told = reason_without_data(error, is_output=self.hides_data)
        count_reason(self.reasons, told)
        if attempt is not None:
            failed_at = datetime.now(UTC).isoformat(timespec="milliseconds")
            number = {"attempt": attempt.attempt, "failed_at": failed_at}
            document, noted = {**number, "error": shortened(self.last_error)}, {**number, "error": told}
            notes = getattr(error, "__notes__", ())
            # Of an executor: the user code's traceback, which ends with the message.
            if notes and getattr(error, "component", None) and not self.hides_data:
                document["traceback"] = storable(notes[0][-_LONGEST_TRACEBACK:])
                noted["traceback"] = storable(frames_of(notes[0])[-_LONGEST_TRACEBACK:])
            if (is_bug and has_looked) or self.timeouts > 1 + self.hides_data:
                noted["stays"] = True
            self.last.append((document, noted, held or BatchMetas()))

    def for_ledger(
        self, committed: BatchMetas[Any], encode: Callable[[Any], Mapping[str, Any]]
    ) -> tuple[Mapping[str, Any], ...]:
        """Return the latest failures, oldest first, as the ledger keeps them. `same` says that the attempt
        held what is committed now; otherwise there are its `ranges` and what it `left_out`. The newest
        failures get the room first; `more` is how many partitions found none. A `traceback` that a newer
        failure has too is kept once: `same_traceback`."""
        return _kept([(document, held) for document, _, held in self.last], committed, encode, _KEPT_RANGES)

    def for_note(
        self, encode: Callable[[Any], Mapping[str, Any]]
    ) -> tuple[Mapping[str, Any], tuple[Mapping[str, Any], ...]]:
        """Return what the latest failed attempt held, and the latest failures, as ZooKeeper may have them.
        There `same` says that an attempt held the same as the latest one."""
        held = self.last[-1][2]
        partitions = {name: encode(meta) for name, meta in islice(held.partitions.items(), _NOTED_RANGES)}
        metas = {
            "partitions": partitions,
            "unavailable": dict(islice(held.unavailable.items(), _NOTED_RANGES)),
            "more": len(held.partitions) - len(partitions),
        }
        return metas, _kept([(noted, one) for _, noted, one in self.last], held, encode, _NOTED_RANGES)

    def with_advice(self, error: BaseException, records: int | None) -> BaseException:
        """Return the error. A timeout that follows another one gets advice on what to change."""
        if not (isinstance(error, BatchTimeoutError) and self.timeouts):
            return error
        size = "an unknown number of records" if records is None else counted(records, "record")
        return BatchTimeoutError(
            f"{error}, nor was the attempt before it; the batch has {size}: give it more time "
            f"(`txstream run --message-timeout SECONDS`, message_timeout_seconds of the builder) or plan "
            f"fewer records for a batch (max_batch_records of the spout)"
        )

    @property
    def delay_seconds(self) -> float:
        """How long the next attempt waits, because a failure seldom goes away at once. What a late record
        needs is a search, and that at once."""
        return BACKOFF.after(self.attempts - self.late)


def frames_of(details: str) -> str:
    """Return a traceback of user code up to the message, which may hold anything."""
    found = _FRAMES.match(details)
    return "" if found is None else found[0].rstrip()


def _kept(
    failures: Sequence[tuple[Mapping[str, Any], BatchMetas[Any]]],
    now: BatchMetas[Any],
    encode: Callable[[Any], Mapping[str, Any]],
    room: int,
) -> tuple[Mapping[str, Any], ...]:
    """See `TxidFailures.for_ledger`; `now` are the metas that are kept beside the failures."""
    kept: list[Mapping[str, Any]] = []
    text_room, newer = _KEPT_TRACEBACKS, None
    for full, held in reversed(failures):
        document = dict(full)
        found = document.pop("traceback", None)
        if found is not None and found == newer:
            document["same_traceback"] = True
        elif found is not None and len(found) <= text_room:
            document["traceback"] = newer = found
            text_room -= len(found)
        if held.partitions == now.partitions and held.unavailable.keys() == now.unavailable.keys():
            kept.append({**document, "same": True})
            continue
        ranges = {name: encode(meta) for name, meta in islice(held.partitions.items(), room)}
        left_out = list(islice(held.unavailable, room - len(ranges)))
        room -= len(ranges) + len(left_out)
        more = len(held.partitions) + len(held.unavailable) - len(ranges) - len(left_out)
        kept.append({**document, "ranges": ranges, "left_out": left_out, "more": more})
    return tuple(reversed(kept))
