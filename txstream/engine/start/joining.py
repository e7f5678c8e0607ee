"""Changes to a topology's states since its last run: tables that grew, states that were added.

Invariants. Only a leader that has raised every fence makes these changes, before its first batch, and each
step requires its fence. An added state is empty and counts from the current txid on. A database that is new
to the topology gets the ledger row of the txid before the current one, so that the next leader's recovery
finds all ledgers alike. The identity in ZooKeeper is replaced after all of this: a leader that finds it
without the new state, after a crash, begins again, and nothing has been committed to that state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from txstream.api.errors import CorruptStateError
from txstream.api.topology import Topology
from txstream.batch_metas import MetaCodec
from txstream.engine.start.identity import Claim, keep_identity
from txstream.engine.start.recovery import Resume, patiently
from txstream.semantics import Semantics
from txstream.state import BatchRecord, FenceLockedError, TopologyStates
from txstream.state.records import COMMITTED
from txstream.transaction import FIRST_TXID, AttemptId, Txid
from txstream.zookeeper import Identity, ProgressStore

log = logging.getLogger(__name__)


def newcomers_of(
    topology: Topology, claim: Claim, store: ProgressStore, states: Sequence[TopologyStates]
) -> list[TopologyStates]:
    """Return the databases that hold only joining states and have no ledger up to the current txid.

    Their ledger is empty, or left by a joining that was broken off and given up. Every fence must be raised.
    """
    if not claim.joining:
        return []
    progress = store.load()
    if topology.semantics is Semantics.NON_TRANSACTIONAL or progress.current == FIRST_TXID:
        return []
    found = []
    for one in states:
        names = {spec.state.table for spec in one.life.tables}
        if not names or not names <= claim.joining:
            continue
        last = one.last_batch()
        goes_on = last is not None and (
            last.txid >= progress.current
            or (last.txid == progress.current - 1 and last.attempt == progress.committed_by)
        )
        if not goes_on:
            found.append(one)
    return found


def settle_changes(
    topology: Topology,
    claim: Claim,
    store: ProgressStore,
    states: Sequence[TopologyStates],
    newcomers: Sequence[TopologyStates],
    fence: AttemptId,
    resume: Resume,
    codec: MetaCodec[Any],
    *,
    locked: Callable[[FenceLockedError], None],
) -> Identity:
    """Migrate tables that grew, let added states join, and return the identity from now on.

    Every fence is at `fence`. Raises StateTableError for a change that must wait until a partly committed
    txid is done.
    """
    unfinished = min(resume.replays, default=None)
    for one in states:
        for sentence in patiently(partial(one.migrate, fence, unfinished=unfinished), locked):
            log.info("topology %s: %s", topology.id, sentence)
    if newcomers:
        last = _last_batch(topology, claim.identity.uuid, states, resume, codec)
        for newcomer in newcomers:
            patiently(partial(newcomer.begin_ledger, fence, last), locked)
    identity = claim.joined if claim.joining else claim.identity
    if claim.joining:
        store.replace_identity(identity)
    # Before the first batch: a rebuild of ZooKeeper from these databases must know every state that counts.
    patiently(partial(keep_identity, identity, states, fence), locked)
    for name in sorted(claim.joining):
        log.info("topology %s: state %s counts from txid %d on", topology.id, name, resume.progress.current)
    return identity


def _last_batch(
    topology: Topology, uuid: str, states: Sequence[TopologyStates], resume: Resume, codec: MetaCodec[Any]
) -> BatchRecord:
    """Return the ledger row of the txid before the current one: what ZooKeeper knows about it and, for
    display, what another database knows."""
    progress = resume.progress
    txid = Txid(progress.current - 1)
    attempt, metas = progress.committed_by, codec.encode(progress.batches[txid].metas)
    if attempt is None:
        raise CorruptStateError(
            f"topology {topology.id!r}: ZooKeeper does not say which attempt committed txid {txid}"
        )
    for one in states:
        found = one.batch(txid)
        if found is not None and found.attempt == attempt:
            return replace(found, metas=metas, keys=0)
    now = datetime.now(UTC)
    return BatchRecord(
        topology.id, uuid, txid, attempt, topology.semantics, COMMITTED, metas, 0, 0, now, now, now, None
    )  # fmt: skip
