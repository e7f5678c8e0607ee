"""Who owns a fence and who may raise it, as pure functions, so that every backend raises the same errors."""

from __future__ import annotations

from txstream.core.errors import CorruptStateError, ProgressMismatchError, StaleAttemptError
from txstream.core.transaction import AttemptId, epoch_of, sequence_of
from txstream.state.records import FenceRow, TopologyLife


def own_fence(found: FenceRow | None, database: str, life: TopologyLife) -> FenceRow:
    """Return the fence found for a life that has joined. Raises CorruptStateError when there is none,
    ProgressMismatchError when it is another life's."""
    topology = life.topology
    if found is None:
        raise CorruptStateError(
            f"database {database}: txstream_fence has no row for topology {topology!r}, which has been run "
            f"on it; it was deleted, or the database restored from an older copy. `txstream fsck {topology}` "
            f"says what is wrong; `txstream recover {topology} --from-ledger` makes a fence again that was "
            f"deleted; or start afresh with `txstream delete {topology} --uuid {life.uuid} --drop-state`"
        )
    if found.uuid != life.uuid:
        raise other_life(found, life.uuid, database)
    return found


def joining_keeps(found: FenceRow) -> bool:
    """May a joining driver's identity replace the one beside this fence? Not once a leader has kept one: the
    joining driver may be an older one, and only leaders check the fence first (`keep_identity`)."""
    return found.attempt == 0 or found.identity is None


def must_rise(found: FenceRow, topology: str, attempt: AttemptId, *, may_be_equal: bool) -> bool:
    """Tell whether the fence must be raised for this attempt. Raises StaleAttemptError for a stale attempt.

    With `may_be_equal` the fence may be at this attempt already (False is returned), because a leader that
    lost the answer tries again. Without it, an equal attempt is stale too.
    """
    if found.attempt < attempt:
        return True
    if found.attempt > attempt:
        raise superseded(topology, attempt, found)
    if not may_be_equal:
        raise StaleAttemptError(
            f"topology {topology!r}: attempt {shown_attempt(attempt)} has already been used for a commit; "
            f"nothing was written again"
        )
    return False


def must_be_equal(found: FenceRow, database: str, topology: str, attempt: AttemptId) -> None:
    """Raise StaleAttemptError when the fence is above this attempt, CorruptStateError when it is below."""
    if found.attempt < attempt:
        raise CorruptStateError(
            f"topology {topology!r}: the fence of database {database} is at attempt "
            f"{shown_attempt(found.attempt)}, but {shown_attempt(attempt)} was begun; the database was "
            f"restored from an older copy while the topology ran: start it again"
        )
    if found.attempt > attempt:
        raise superseded(topology, attempt, found)


def superseded(topology: str, attempt: AttemptId, found: FenceRow) -> StaleAttemptError:
    """Return the error for an attempt when a newer one has raised the fence."""
    return StaleAttemptError(
        f"topology {topology!r}: the fence is at attempt {shown_attempt(found.attempt)}, newer than "
        f"{shown_attempt(attempt)}; another driver has taken over and nothing was written"
        if epoch_of(found.attempt) > epoch_of(attempt)
        else f"topology {topology!r}: attempt {shown_attempt(attempt)} has been superseded by this driver's "
        f"own {shown_attempt(found.attempt)}; nothing was written"
    )


def unknown_here(life: TopologyLife, database: str) -> ProgressMismatchError:
    """Return the error for a run, not the first, that finds no fence."""
    topology = life.topology
    return ProgressMismatchError(
        f"topology {topology!r} has committed batches according to ZooKeeper, but database {database} "
        f"knows nothing of it; point at the database that it was run with (--database / "
        f"TXSTREAM_DATABASE). If only its fence was deleted, `txstream recover {topology} --from-ledger` "
        f"makes it again; `txstream fsck {topology}` says what is wrong; or start afresh with "
        f"`txstream delete {topology} --uuid {life.uuid} --drop-state`"
    )


def other_life(found: FenceRow, uuid: str, database: str) -> ProgressMismatchError:
    """Return the error for a fence that has the same topology id but another uuid."""
    return ProgressMismatchError(
        f"topology {found.topology!r} has uuid {uuid} in ZooKeeper and uuid {found.uuid} in database "
        f"{database}; one of the two was deleted or lost: `txstream fsck {found.topology}` compares them. "
        f"Point at the right one, run it under another id (--id), or start afresh: `txstream delete "
        f"{found.topology} --uuid {found.uuid} --drop-state` forgets the one in that database, --uuid {uuid} "
        f"the other"
    )


def shown_attempt(attempt: int) -> str:
    """Return an attempt as text: EPOCH.SEQUENCE."""
    return f"{epoch_of(attempt)}.{sequence_of(attempt)}"
