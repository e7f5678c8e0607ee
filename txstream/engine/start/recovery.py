"""What a new leader does before anything else, and what it decides. The order of the steps is the protocol.

Invariants. Nothing that the decision depends on is read before every fence of every database is raised, so
that no older leader can change it afterwards. A disagreement that the rules do not explain is an error that
names both figures; nothing is guessed. The ledgers that a decision compares are of different databases: one
row is never taken for two witnesses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.errors import ProgressMismatchError, TopologyError
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, Epoch, Txid, attempt_id, epoch_of
from txstream.state import BatchRecord, FenceLockedError, FenceRow
from txstream.zookeeper import Progress, ProgressStore

T = TypeVar("T")


class FencedStates(Protocol):
    """What recovery needs from a topology's part of a database; `TopologyStates` provides it."""

    @property
    def display_url(self) -> str: ...

    def read_fence(self) -> FenceRow | None: ...

    def raise_fence(self, attempt: AttemptId) -> None: ...

    def last_batch(self) -> BatchRecord | None: ...


@dataclass(frozen=True)
class Resume:
    """Go on at `progress.current`. The `replays` were partly committed; all databases must run them again."""

    progress: Progress
    replays: frozenset[Txid] = frozenset()


@dataclass(frozen=True)
class AdvanceFirst:
    """`txid` is committed in all databases; only the progress store does not know yet. Nothing runs again."""

    txid: Txid
    attempt: AttemptId
    metas: BatchMetas[Any]


@dataclass(frozen=True)
class AdoptPlan:
    """A transactional plan that only a ledger still has: store it, then decide again."""

    txid: Txid
    metas: BatchMetas[Any]


Decision = Resume | AdvanceFirst | AdoptPlan


def _give_up(error: FenceLockedError) -> None:
    raise error


def take_over(
    store: ProgressStore,
    databases: Sequence[FencedStates],
    *,
    locked: Callable[[FenceLockedError], None] = _give_up,
) -> Epoch:
    """Claim an epoch above all others, raise every fence to it, and return it.

    While a frozen writer holds a fence, `locked` is called before each further try; it raises to give up.
    Raises FencedError if another leader was faster.
    """
    highest = Epoch(0)
    for database in databases:
        fence = database.read_fence()
        if fence is not None:
            highest = max(highest, epoch_of(fence.attempt))
    epoch = store.claim_epoch(highest)

    def still_mine(error: FenceLockedError) -> None:
        locked(error)
        store.verify()

    for database in databases:
        patiently(partial(database.raise_fence, attempt_id(epoch, 0)), still_mine)
    return epoch


def prove_distinct(
    topology: str,
    databases: Sequence[FencedStates],
    epoch: Epoch,
    *,
    locked: Callable[[FenceLockedError], None] = _give_up,
) -> AttemptId:
    """Prove that no two of these are one database, and return the attempt at which every fence is afterwards.

    Each fence gets a value of its own, and all are read again: one database under two URLs has one fence.
    Call it after `take_over`. Raises TopologyError that names both, and StaleAttemptError if another leader
    has raised a fence meanwhile.
    """
    own = [attempt_id(epoch, number) for number in range(max(1, len(databases)))]
    if len(own) == 1:
        return own[0]
    for number, database in enumerate(databases[1:], 1):  # the first one's fence has its value already
        patiently(partial(database.raise_fence, own[number]), locked)
    for number, database in enumerate(databases):
        fence = database.read_fence()
        if fence is not None and fence.attempt in own[number + 1 :]:
            other = databases[own.index(fence.attempt)]
            raise one_database(topology, database.display_url, other.display_url)
    for database in databases:
        patiently(partial(database.raise_fence, own[-1]), locked)
    return own[-1]


def one_database(topology: str, one: str, other: str) -> TopologyError:
    """Return the error for two URLs of one database, which has one fence and one ledger."""
    return TopologyError(
        f"topology {topology!r}: {one} and {other} are one database under two URLs; give all states in it "
        f"the same URL, or no URL if it is the run's own database"
    )


def patiently(step: Callable[[], T], locked: Callable[[FenceLockedError], None]) -> T:
    """Return the result of `step`, retried until no session holds the fence; `locked` precedes each retry."""
    while True:
        try:
            return step()
        except FenceLockedError as error:
            locked(error)


def recover(
    topology: str,
    semantics: Semantics,
    store: ProgressStore,
    databases: Sequence[FencedStates],
    codec: MetaCodec[Any],
) -> Resume:
    """Read progress and ledgers, and settle what a crash left between them. Call it after `take_over`.

    Raises ProgressMismatchError, CorruptStateError or FencedError.
    """
    while True:
        progress = store.load()
        if semantics is Semantics.NON_TRANSACTIONAL:
            return Resume(progress)
        ledgers = {database.display_url: database.last_batch() for database in databases}
        try:
            decision = decide(topology, semantics, progress, ledgers, codec)
        except ProgressMismatchError:
            # If another leader has moved on since, this is no mismatch but the end of our turn: FencedError.
            store.verify()
            raise
        match decision:
            case Resume():
                return decision
            case AdvanceFirst(txid, attempt, metas):
                store.advance(txid, attempt, None if semantics is Semantics.TRANSACTIONAL else metas)
            case AdoptPlan(txid, metas):
                store.persist(txid, metas)


def decide(
    topology: str,
    semantics: Semantics,
    progress: Progress,
    ledgers: Mapping[str, BatchRecord | None],
    codec: MetaCodec[Any],
) -> Decision:
    """Decide what progress and ledgers mean together. Pure; `ledgers` has each database's last row.

    C is the current txid. Raises ProgressMismatchError unless all ledgers are at C-1, all committed C by one
    attempt, or some are at C and the others at C-1.
    """
    current = progress.current
    at_current: dict[str, BatchRecord] = {}
    for database, row in ledgers.items():
        txid = 0 if row is None else row.txid
        if row is not None and txid == current:
            at_current[database] = row
        elif txid != current - 1:
            raise _mismatch(topology, progress, database, row, "they may be at most one batch apart")
        elif row is not None:
            _check_last(topology, progress, database, row, codec)
    if not at_current:
        return Resume(progress)
    rows = list(at_current.values())
    everywhere = len(rows) == len(ledgers) and all(row.status == "committed" for row in rows)
    if semantics is Semantics.TRANSACTIONAL:
        adopted = _plan_in_ledgers(topology, progress, at_current, codec)
        if adopted is not None:
            return adopted
    if everywhere and len({row.attempt for row in rows}) == 1:
        database, row = next(iter(at_current.items()))
        metas = codec.decode(row.metas, f"ledger of {database}, txid {current}")
        return AdvanceFirst(current, AttemptId(row.attempt), metas)
    return Resume(progress, frozenset({current}))


def _check_last(
    topology: str, progress: Progress, database: str, row: BatchRecord, codec: MetaCodec[Any]
) -> None:
    stored = progress.batches.get(Txid(progress.current - 1))
    if row.status != "committed":
        raise _mismatch(topology, progress, database, row, "its last batch was never committed")
    if row.attempt != progress.committed_by:
        raise _mismatch(
            topology, progress, database, row,
            f"ZooKeeper has attempt {progress.committed_by} for it, the ledger {row.attempt}",
        )  # fmt: skip
    # Decoded and encoded again: a row of an older version lacks new fields and would look different.
    ledger = codec.decode(row.metas, f"ledger of {database}, txid {row.txid}")
    if stored is not None and codec.encode(stored.metas) != codec.encode(ledger):
        raise _mismatch(topology, progress, database, row, "they hold different ranges for that batch")


def _plan_in_ledgers(
    topology: str, progress: Progress, rows: Mapping[str, BatchRecord], codec: MetaCodec[Any]
) -> AdoptPlan | None:
    stored = progress.batches.get(progress.current)
    for database, row in rows.items():
        metas = codec.decode(row.metas, f"ledger of {database}, txid {row.txid}")
        if stored is None:
            return AdoptPlan(Txid(row.txid), metas)
        if codec.encode(stored.metas) != codec.encode(metas):
            raise _mismatch(
                topology, progress, database, row, "the stored plan differs from the one committed"
            )
    return None


def _mismatch(
    topology: str, progress: Progress, database: str, row: BatchRecord | None, why: str
) -> ProgressMismatchError:
    found = f"txid {row.txid} ({row.status})" if row is not None else "no batch at all"
    return ProgressMismatchError(
        f"topology {topology!r}: ZooKeeper says that txid {progress.current - 1} was committed last, "
        f"the ledger of {database} says {found}; {why}. One of the two was lost or restored from an older "
        f"copy. `txstream fsck {topology}` says what is wrong; if it is ZooKeeper, "
        f"`txstream recover {topology} --from-ledger` mends it; if it is the database, bring it up to date, "
        f"or start afresh with `txstream delete {topology} --drop-state`"
    )
