"""Finds the records at which a batch fails, so that the batch commits without them.

It works inside the attempt that follows a failed one. First the workers look for bad records, each in its
share of the batch (`record_search`): one job for the search, and one in which what it found is tried again.
Then the batch is processed without them. If that fails, its ranges are halved, each half in a job of its own,
until single records are left. Nothing of a trial is committed.

Invariants. A record is left out only after two trials with this record alone have failed, in two jobs, or two
with nothing but late records; and never because of an outage or a BatchFailedError: these end the search, and
the attempt with it. When more fail than the limits allow, none is left out; of late records there is no
limit. What the search gives back was processed without the records that it names. A record at which user code
hangs looks like a service that does not answer, so it is tried once more after the others have passed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from txstream.core.batch_metas import BatchMetas, alone_in, halves, is_left, only, only_record
from txstream.core.dead_letters import DeadLetters, Excluded
from txstream.core.errors import BatchFailedError, BatchTimeoutError, BoltError, LateRecordError
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.core.wording import counted
from txstream.engine.batch.record_search import FailingRecord
from txstream.engine.batch.sizing import planned_records
from txstream.engine.letters.retry_policy import may_be_a_record, reason_without_data, shortened

T = TypeVar("T")

log = logging.getLogger(__name__)

_LATE_AT_ONCE = 1_000
_TOO_LONG = "a part of it was not processed in time (message_timeout_seconds)"
_LATE = "its row is older than its table keeps rows"
_LEAST_SHARE, _NEARLY_ALL = 0.2, 0.75
_MOST_HANGING = 3
"""Each costs minutes, and when all records hang, it is no record."""


class _HangingError(BoltError):
    """A trial took too long and was ended."""

    kind = BatchTimeoutError.__name__
    words = "user code hung: the record was not processed within the message timeout, in several trials"


class Found(NamedTuple):
    """A record that fails by itself, and in which words. `row` is the record as it is stored, if it is known
    without the source being asked."""

    record: Excluded
    message: str
    traceback: str
    row: Mapping[str, Any] | None = None


class Isolated(NamedTuple, Generic[T]):
    """A batch without the records that fail, and what came of it. `found` are those of this search."""

    metas: BatchMetas[Any]
    processed: T
    found: list[Found]


class Find(Protocol):
    """`BatchRunner.find`."""

    def __call__(
        self, attempt: TransactionAttempt, parts: Sequence[BatchMetas[Any]], *, most: int
    ) -> Sequence[FailingRecord]: ...


class Isolation(Generic[T]):
    """One topology's searches. `process` does to a batch what comes before its commit; `release` drops what
    came of it; `find` has the workers look for records. Several threads search at once, each for an attempt
    of its own."""

    def __init__(
        self,
        limits: DeadLetters,
        process: Callable[[TransactionAttempt, BatchMetas[Any]], T],
        release: Callable[[T], None],
        find: Find,
    ) -> None:
        self._limits = limits
        self._process = process
        self._release = release
        self._find = find
        self._trials: Counter[TransactionAttempt] = Counter()
        self.trying: dict[TransactionAttempt, str] = {}
        """How much is left to look through, of each attempt that searches."""
        self._shares: dict[TransactionAttempt, float | None] = {}
        # The number of the last trial of an attempt that was ended.
        self._ended: dict[TransactionAttempt, int] = {}
        # Batches whose search by workers has not come to its end.
        self._unfinished: set[Txid] = set()

    def spare(self, metas: BatchMetas[Any]) -> int:
        """Return how many records more a batch may leave out: none of dead letters that it retries."""
        if metas.retried:
            return 0
        most = self._limits.most_of(planned_records(metas) or 0)
        return max(0, most - sum(not one.is_late for one in metas.excluded))

    def trials(self, attempt: TransactionAttempt) -> int:
        """Return how many trials of an attempt have begun: as long as it grows, nothing hangs."""
        return self._trials[attempt]

    def share(self, attempt: TransactionAttempt) -> float | None:
        """Return which share of the message timeout the present trial has; None for one of nearly all of a
        batch. Parts have theirs by size, so halving takes little more than one trial; a record has all."""
        return self._shares.get(attempt)

    def end_trial(self, attempt: TransactionAttempt) -> bool:
        """Note that the trial of an attempt takes too long: however it fails now, it hung. Returns False if
        there is none, or if it was to end before."""
        trial = self._trials[attempt]
        if not trial or self._ended.get(attempt) == trial:
            return False
        self._ended[attempt], self._shares[attempt] = trial, None  # to end may take longer than to try
        return True

    def run(
        self, attempt: TransactionAttempt, metas: BatchMetas[Any], is_wanted: Callable[[], bool], *,
        hangs: bool = False,
    ) -> Isolated[T]:  # fmt: skip
        """Process a batch, without the records that fail by themselves; of retried ones each is tried alone.
        One that is known to hang is not tried as a whole. Raises the first error when single records, or so
        few of them, do not explain it; BatchFailedError once it is not wanted."""
        search = _Search(self, attempt, metas, is_wanted)
        try:
            found = search.retry(metas) if metas.retried else search.run(metas, hangs=hangs)
            self._unfinished.discard(attempt.txid)
            return found
        except _HangingError as error:
            raise BatchTimeoutError(str(error)) from error
        finally:
            self._forget(attempt)

    def _forget(self, attempt: TransactionAttempt) -> None:
        del self._trials[attempt]
        self.trying.pop(attempt, None)
        self._shares.pop(attempt, None)
        self._ended.pop(attempt, None)

    def tell_again(
        self,
        attempt: TransactionAttempt,
        metas: BatchMetas[Any],
        known: Sequence[Found],
        is_wanted: Callable[[], bool],
    ) -> list[Found]:
        """Return in which words the records fail that a batch leaves out. A stored plan keeps no words, so
        what an earlier driver found is tried again. It stays left out, whatever comes of that."""
        told = {one.record: one for one in known}
        for record in metas.excluded:
            if record.is_late:  # of which there may be thousands
                told.setdefault(record, Found(record, _LATE, ""))
        search = _Search(self, attempt, metas, is_wanted)
        try:
            unknown = {record: alone_in(metas, record) for record in metas.excluded if record not in told}
            errors = {(one.partition, one.offset): one.error for one in search.found_in([*unknown.values()])}
            for record, alone in unknown.items():
                error = errors.get((record.partition, record.offset)) or search.failure(alone)
                words = ("it does not fail any more", "") if error is None else _words(error)
                told[record] = Found(record, *words)
        finally:
            self._forget(attempt)
        return list(told.values())


class _Search(Generic[T]):
    """The search of one attempt."""

    def __init__(
        self,
        isolation: Isolation[T],
        attempt: TransactionAttempt,
        metas: BatchMetas[Any],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._isolation = isolation
        self._attempt = attempt
        self._is_wanted = is_wanted
        self._most = isolation._limits.most_of(planned_records(metas) or 0)
        self._whole = _size([metas])
        self._left = self._most - sum(not one.is_late for one in metas.excluded)
        self._found: list[Found] = []
        self._first: Exception | None = None
        self._hanging = 0

    def run(self, metas: BatchMetas[Any], *, hangs: bool) -> Isolated[T]:
        log.info("%s: looking for the records at which it fails", self._attempt)
        if hangs:
            for place, failure in failing_alone(metas, _HangingError(_TOO_LONG), self.failure):
                self._add(place, failure)
        else:
            self._add_all(self._found_by_workers(metas))
        whole = metas
        while True:
            metas = whole.leaving_out(one.record for one in self._found)
            try:
                processed = self._processed(metas)
            except Exception as error:
                if not may_be_a_record(error):
                    raise
                self._note(error)
                known = len(self._found)
                if isinstance(error, LateRecordError):
                    # There may be too many for trials that are jobs, and for one search in limited time.
                    self._add_all(self._found_by_workers(metas))
                if len(self._found) == known:
                    for place, failure in failing_alone(metas, error, self.failure):
                        self._add(place, failure)
                if len(self._found) == known:
                    raise
            else:
                passing = self._passing_now(whole)
                if not passing:
                    return Isolated(metas, processed, self._found)
                self._isolation._release(processed)
                self._found = [one for one in self._found if one not in passing]

    def _passing_now(self, whole: BatchMetas[Any]) -> list[Found]:
        """Return the records at which user code hung, and does so no more."""
        hung = [one for one in self._found if one.record.exception == _HangingError.kind]
        return [one for one in hung if self.failure(alone_in(whole, one.record)) is None]

    def retry(self, metas: BatchMetas[Any]) -> Isolated[T]:
        """Process a batch of dead letters without those that fail again: they stay dead. Of records that fail
        only together, half are taken."""
        while True:
            try:
                return Isolated(metas, self._processed(metas), [])
            except Exception as error:
                if not may_be_a_record(error):
                    raise
                well = [one for one in metas.retried if self.failure(metas.retrying([one])) is None]
                if len(well) == len(metas.retried):
                    if len(well) < 2:
                        raise
                    well = well[: len(well) // 2]
                metas = metas.retrying(well)

    def _found_by_workers(self, metas: BatchMetas[Any]) -> list[FailingRecord]:
        """Return what fails by itself in two jobs."""
        found = self.found_in([metas])
        late = [one for one in found if isinstance(one.error, LateRecordError)]
        others = [one for one in found if not isinstance(one.error, LateRecordError)]
        alone = [alone_in(metas, Excluded(one.partition, one.offset, "", "")) for one in others]
        # Thousands, perhaps: the search takes them together, and each by itself if that tells nothing.
        for start in range(0, len(late), _LATE_AT_ONCE):
            some = late[start : start + _LATE_AT_ONCE]
            alone.append(only(metas, [Excluded(one.partition, one.offset, "", "") for one in some]))
        # A service that is away for a moment, or a machine that dies, makes no dead letter.
        return self.found_in(alone)

    def found_in(self, parts: Sequence[BatchMetas[Any]]) -> list[FailingRecord]:
        """Have workers look through parts. What they cannot find, because a record ends its worker for
        example, is left to trials; so is all of a batch for which they took so long that the attempt was
        given up, since the next one would be too."""
        isolation, txid = self._isolation, self._attempt.txid
        if not parts or txid in isolation._unfinished:
            return []
        self._begin_trial(*parts)
        isolation._unfinished.add(txid)
        found: list[FailingRecord] = []
        try:
            # One more than may become dead letters: more would tell nothing else.
            found += isolation._find(self._attempt, parts, most=max(self._left + 1, len(parts)))
        except Exception as error:
            is_hanging = isinstance(self._explained(error), _HangingError)
            if self._is_wanted() and not is_hanging:
                isolation._unfinished.discard(txid)
            if not may_be_a_record(error) and not is_hanging:
                raise
            why = reason_without_data(error, is_output=True)
            log.info("%s: workers could not look for records: %s", self._attempt, why)
        else:
            isolation._unfinished.discard(txid)
        return found

    def _note(self, error: Exception) -> None:
        """Keep the first error, for a run that ends with it. Neither hanging user code nor a late record ends
        one."""
        if self._first is None or isinstance(self._first, (_HangingError, LateRecordError)):
            self._first = error

    def _add_all(self, found: Sequence[FailingRecord]) -> None:
        for one in found:
            self._add((one.partition, one.offset), one.error)

    def _add(self, place: tuple[str, int], error: Exception) -> None:
        """Add a record that has failed by itself twice."""
        self._note(error)
        assert self._first is not None
        is_late = isinstance(error, LateRecordError)
        if not is_late and sum(not one.record.is_late for one in self._found) == self._left:
            self._first.add_note(
                f"more records of the batch fail by themselves than may become dead letters "
                f"({self._most:,}); that is taken for a bug, so none became one (DeadLetters, --dead-letters)"
            )
            vars(self._first)["ends_run"] = True
            raise self._first
        if isinstance(error, _HangingError):
            self._hanging += 1
            if self._hanging > _MOST_HANGING:
                raise error
        self._found.append(found_at(*place, error))

    def failure(self, part: BatchMetas[Any]) -> Exception | None:
        """Try a part. Return how it fails, or None."""
        try:
            self._isolation._release(self._processed(part))
        except Exception as error:
            if not may_be_a_record(error):
                raise
            return error
        return None

    def _processed(self, metas: BatchMetas[Any]) -> T:
        self._begin_trial(metas)
        try:
            return self._isolation._process(self._attempt, metas)
        except Exception as error:
            explained = self._explained(error)
            if explained is error:
                raise
            raise explained from error

    def _explained(self, error: Exception) -> Exception:
        """Return an error of the last trial, or that it hung if it was ended."""
        isolation, attempt = self._isolation, self._attempt
        if isolation._ended.get(attempt) != isolation._trials[attempt]:
            return error
        return _HangingError(f"{attempt}: {_TOO_LONG}")

    def _begin_trial(self, *parts: BatchMetas[Any]) -> None:
        if not self._is_wanted():
            raise BatchFailedError(f"{self._attempt} was cancelled")
        size = _size(parts)
        self._isolation._trials[self._attempt] += 1
        share = size / self._whole if size > 1 else float(size)
        is_all = size != 1 and (share == 0 or share > _NEARLY_ALL)
        self._isolation._shares[self._attempt] = None if is_all else max(_LEAST_SHARE, share)
        left = f"{size:,} of {counted(self._whole, 'record')} left to try"
        self._isolation.trying[self._attempt] = left if self._whole else "parts of it are tried"


def _size(parts: Sequence[BatchMetas[Any]]) -> int:
    """Return how many records parts hold; 0 if the source's metas do not say."""
    return sum((planned_records(part) or 0) + len(part.retried) for part in parts)


def found_at(partition: str, offset: int, error: Exception) -> Found:
    """Return a record that fails by itself, and how."""
    kind = getattr(error, "kind", None) or type(error).__name__
    component = getattr(error, "component", None) or ""
    return Found(Excluded(partition, offset, component, kind), *_words(error))


def failing_alone(
    part: BatchMetas[Any], error: Exception, failure: Callable[[BatchMetas[Any]], Exception | None]
) -> Iterator[tuple[tuple[str, int], Exception]]:
    """Yield the place and the error of each record that fails by itself, and again, of a part that fails with
    this error: halves of what fails are tried. `failure` tries a part, and returns how it fails, or None."""
    alone = only_record(part)
    if alone is not None:
        if failure(part) is not None:
            yield alone, error
        return
    parts = [*halves(part.partitions, exact=True)]
    for half in parts if len(part.partitions) > 1 else reversed(parts):  # the older records first
        smaller = part.part(half)
        found = failure(smaller) if is_left(smaller) else None
        if found is not None:
            yield from failing_alone(smaller, found, failure)


def _words(error: Exception) -> tuple[str, str]:
    """Return an error's message and the traceback of what raised it."""
    message = str(getattr(error, "words", None) or error)
    return shortened(message), "\n".join(getattr(error, "__notes__", ()))
