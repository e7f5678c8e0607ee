"""Names the record at which a batch fails, once the batch's error has ended the run.

First the workers look for it, in one job (`record_search`). What they cannot find, such as what a database
refuses, is sought by trials that are jobs: halves of the ranges, as those of `isolation`, for as long as they
fail in the same way.

Invariants. Nothing of a trial is committed, and a batch that does not end the run costs nothing. A search
ends in time, whatever user code or a database does, and never takes the place of the run's own error. What
is named is the batch, or a part of it that has failed alike.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from txstream.api.topology import Topology
from txstream.core.batch_metas import BatchMetas, alone_in, is_empty, only_record
from txstream.core.dead_letters import Excluded
from txstream.core.errors import BoltError, StateValueError, TupleError, TxstreamError
from txstream.core.transaction import AttemptId, TransactionAttempt
from txstream.core.wording import counted, in_order
from txstream.engine.batch.record_search import FailingRecord
from txstream.engine.batch.sought import Sought
from txstream.engine.commit.committer import state_committers
from txstream.engine.letters.isolation import failing_alone
from txstream.engine.letters.retry_policy import reason_of, reason_without_data

if TYPE_CHECKING:
    from txstream.engine.start.batch_tier import BatchTier

log = logging.getLogger(__name__)

SECONDS = 20.0
"""A search takes no longer: the run is over, and somebody waits for its end."""

_MOST_RANGES = 4
_ATTEMPT = re.compile(r"txid \d+ attempt \d+\.\d+|, task \d+(?=:)")
_NAMES = re.compile(r"(?:table|column) '[^']*'")
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")

Ranges = Mapping[str, Any]
"""By partition."""


@dataclass(frozen=True)
class Trials:
    """What a search may do; none of it is committed. `attempt` does to a part of the batch what was done to
    all of it, and raises how it fails. `find` returns, within about so many seconds, records that fail by
    themselves in the workers; `seek` those that make the tuple, or one with the key, at which the commit
    phase failed. `give_up`, called from another thread, ends what is under way."""

    attempt: Callable[[BatchMetas[Any]], object]
    seek: Callable[[float], Sequence[FailingRecord]] = lambda _seconds: ()
    give_up: Callable[[], object] = lambda: None
    find: Callable[[float], Sequence[FailingRecord]] = lambda _seconds: ()


def explain(tier: BatchTier, error: TxstreamError) -> None:
    """Add to an error of a batch where its record is. Nothing that this processes can be committed."""
    loop, topology = tier.running, tier.topology
    ended_by, processing = loop.failures.ended_by, loop.processing
    if ended_by is None:
        return
    metas, tried = loop.coordinator.metas(ended_by.txid), [ended_by]

    def another() -> TransactionAttempt:
        # A number of its own each time: the run's own attempts were cancelled when it ended.
        tried.append(replace(ended_by, attempt=AttemptId(tried[-1].attempt + 1)))
        return tried[-1]

    in_stores = isinstance(error, StateValueError)
    later = {bolt.id for bolt in topology.bolts if bolt.runs_in_commit}
    sought = _sought(topology, error) if later else None
    trials = Trials(
        lambda part: processing.rehearse(another(), part, in_stores=in_stores),
        lambda seconds: processing.find(another(), metas, seconds, sought) if sought else (),
        lambda: processing.cancel(tried[-1]),
        lambda seconds: processing.find(another(), metas, seconds),
    )
    name_record(error, metas, trials, in_commit=error.component in later)


def name_record(
    error: BaseException,
    metas: BatchMetas[Any],
    trials: Trials,
    *,
    in_commit: bool = False,
    seconds: float = SECONDS,
) -> None:
    """Add to the error where its record is, or, if that cannot be found, what its batch held. `in_commit`: a
    bolt of the commit phase failed, which is never tried with a part of the batch: nobody could undo what it
    changes outside of the states, and a store that remembers the txid would take the part for the whole."""
    if not isinstance(error, (BoltError, StateValueError, TupleError)) or error.record is not None:
        return
    if not metas.partitions:
        return
    log.info("looking for the record at which the batch fails")
    search = _Search(error, metas, trials, in_commit=in_commit, seconds=seconds)
    # A daemon, because nothing can end a thread in user code, and Python must exit all the same.
    thread = threading.Thread(target=search.run, name="txstream-failing-record", daemon=True)
    thread.start()
    thread.join(seconds)
    if search.end():
        trials.give_up()
    error.record = search.told()
    error.args = (f"{error}; {error.record}", *error.args[1:])


class _Search:
    """One search, on a thread of its own. `end` and `told` may be called while it runs."""

    def __init__(
        self, error: TxstreamError, metas: BatchMetas[Any], trials: Trials, *, in_commit: bool, seconds: float
    ) -> None:
        self._error = error
        self._metas = metas
        self._trials = trials
        self._in_commit = in_commit
        self._seconds = seconds
        self._lock = threading.Lock()
        self._is_ended = False
        # The last part that failed alike.
        self._found: Ranges = {name: one for name, one in metas.partitions.items() if not is_empty(one)}
        self._has_failed = self._is_sought = False

    def run(self) -> None:
        try:
            if not self._in_commit and not self._is_found_by_workers():
                self._look()
            if not self._has_failed and only_record(self._metas) is None:
                self._seek()
        except Exception:  # the run ends with its own error, whatever happens here
            log.info("the search for the record ended early", exc_info=True)
        with self._lock:
            self._is_ended = True

    def end(self) -> bool:
        """Have no further part tried. Returns whether the search was still under way."""
        with self._lock:
            was_ended, self._is_ended = self._is_ended, True
        return not was_ended

    def told(self) -> str:
        """Return what was found, in words."""
        with self._lock:
            found, is_sought = self._found, self._is_sought
        if is_sought:
            what = "key" if self._error.given is None else "tuple"
            return f"a record with this {what} is {_shown(found)}"
        if [getattr(meta, "records", None) for meta in found.values()] == [1]:
            return f"the record is {_shown(found)}"
        why = "; bolts of the commit phase are not tried with some of them" if self._in_commit else ""
        return f"the records were {_shown(found)}{why}"

    def _seek(self) -> None:
        for one in self._trials.seek(self._seconds)[:1]:
            self._take_record(one)
            self._is_sought = True

    def _is_found_by_workers(self) -> bool:
        # What a database refuses, the driver finds out.
        if isinstance(self._error, StateValueError) and self._error.component is None:
            return False
        try:
            found = self._trials.find(self._seconds / 2)
        except Exception as other:  # noqa: BLE001 - a service that is away, for example; halves may tell
            log.info("workers could not look for the record: %s", reason_without_data(other, is_output=True))
            return False
        # Another record may fail in a similar way, but the error tells of one.
        same = next((one for one in found if _alike(self._error, one.error) == _EQUAL), None)
        if same is not None:
            self._take_record(same)
        return same is not None

    def _look(self) -> None:
        # What is said may differ from trial to trial, so that only similar parts are left.
        for least in (_EQUAL, _SIMILAR):

            def failure(part: BatchMetas[Any], least: int = least) -> Exception | None:
                return self._failure(part, least)

            if next(failing_alone(self._metas, self._error, failure), None) is not None:
                return

    def _failure(self, part: BatchMetas[Any], least: int) -> Exception | None:
        """Try a part. Return how it fails, if that is as far as this like the batch's error."""
        if self._is_ended:
            return None
        try:
            self._trials.attempt(part)
        except Exception as other:  # noqa: BLE001 - compared, and the run ends with its own error
            if _alike(self._error, other) >= least:
                self._take(part.partitions)
                return other
        return None

    def _take_record(self, one: FailingRecord) -> None:
        self._take(alone_in(self._metas, Excluded(one.partition, one.offset, "", "")).partitions)

    def _take(self, part: Ranges) -> None:
        with self._lock:
            if not self._is_ended:
                self._found, self._has_failed = part, True


_OTHER, _SIMILAR, _EQUAL = range(3)


def _alike(error: TxstreamError, other: Exception) -> int:
    """Return how far two errors are the same, whichever record made them. Equal ones name the same tuple, row
    or value."""
    if type(other) is not type(error):
        return _OTHER
    if isinstance(error, StateValueError) and isinstance(other, StateValueError) and error.row and other.row:
        return _EQUAL if error.row == other.row else _OTHER
    if _ATTEMPT.sub("", str(other)) == _ATTEMPT.sub("", str(error)):
        return _EQUAL
    return _SIMILAR if _shape(other) == _shape(error) else _OTHER


def _shape(error: TxstreamError) -> str:
    """What is said of an error whichever record made it: its message without values, but with its table and
    column; of user code's, its component and place."""
    if error.without_data is not None:
        return error.without_data
    # The words alone: tasks name their component, the driver does not.
    told = reason_of(error.words or error)
    return " ".join([*_NAMES.findall(told), _VALUES.sub("", told)])


def _shown(found: Ranges) -> str:
    names = sorted(found, key=in_order)
    ranges = [_range(name, found[name]) for name in islice(names, _MOST_RANGES)]
    if len(names) > _MOST_RANGES:
        ranges.append(counted(len(names) - _MOST_RANGES, "more partition"))
    return ", ".join(ranges)


def _range(name: str, meta: Any) -> str:
    start, end = getattr(meta, "start", None), getattr(meta, "end", None)
    if start is None or end is None:
        return f"in partition {name}"
    return f"at offset {start}{f' to {end - 1}' if end > start + 1 else ''} of partition {name}"


def _sought(topology: Topology, error: TxstreamError) -> Sought | None:
    """Return the tuple at which a bolt of the commit phase failed, or what has the key that it failed at."""
    given: Sought | None = error.given
    if given is not None or not isinstance(error, StateValueError) or error.row is None:
        return given
    table, key = error.row
    used = [use.state for use in topology.map_states]
    used += [committer.state for committer in state_committers(topology).values()]
    return next((Sought.shown(one.key_names, key) for one in used if one.table == table), None)
