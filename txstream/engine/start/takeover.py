"""Taking up a topology, from its identity to its coordinator. `Driver.start` has the whole order of a start:
election, source and Spark come before this.

Invariant: before every fence is raised, nothing that a decision depends on is read (`recovery`) and no table
is changed (`joining`), so that no older leader can write at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from txstream.api.topology import Topology
from txstream.batch_metas import MetaCodec
from txstream.coordinator import Coordinator
from txstream.engine.commit.committer import StateTarget
from txstream.engine.loop.operator_changes import Steering
from txstream.engine.start.identity import claim_identity, confirm
from txstream.engine.start.joining import newcomers_of, settle_changes
from txstream.engine.start.recovery import Resume, prove_distinct, recover, take_over
from txstream.state import FenceLockedError
from txstream.transaction import AttemptSequence, Epoch, Txid
from txstream.zookeeper import Identity, ProgressStore, Requests


@dataclass(frozen=True)
class Takeover:
    """A topology that was taken up: its identity and epoch, where it resumes, how operators steer it."""

    identity: Identity
    epoch: Epoch
    resume: Resume
    steering: Steering
    coordinator: Coordinator[Any]


def take_up(
    topology: Topology,
    store: ProgressStore,
    targets: Sequence[StateTarget],
    codec: MetaCodec[Any],
    *,
    locked: Callable[[FenceLockedError], None],
    last_txid: Txid | None = None,
    asked_before: Requests | None = None,
) -> Takeover:
    """Claim the id and an epoch, recover, and make the coordinator that goes on from there.

    `locked` is called while a frozen writer holds a database's lock; it raises to give up. `last_txid` is the
    last txid that the coordinator opens. `asked_before` is what operators had asked before this driver stood
    for election. Raises what its steps raise, `claim_identity` to `settle_changes`. Where two of the targets
    turn out to be one database only by their fences, what a first run made stays, for the corrected run.
    """
    claim = claim_identity(topology, store, targets, locked=locked)
    states = [target.of(topology, claim.identity.uuid) for target in targets]
    epoch = take_over(store, states, locked=locked)
    fence = prove_distinct(topology.id, states, epoch, locked=locked)
    claim = confirm(topology, claim, store)
    newcomers = newcomers_of(topology, claim, store, states)
    settled = [one for one in states if one not in newcomers]
    resume = recover(topology.id, topology.semantics, store, settled, codec)
    identity = settle_changes(topology, claim, store, states, newcomers, fence, resume, codec, locked=locked)
    coordinator: Coordinator[Any] = Coordinator(
        topology.semantics,
        current=resume.progress.current,
        stored={txid: batch.metas for txid, batch in resume.progress.batches.items()},
        next_attempt=AttemptSequence(epoch, after=fence).next,
        max_spout_pending=topology.max_spout_pending,
        replays=resume.replays,
        last_txid=last_txid,
    )
    steering = Steering(topology, coordinator)
    steering.restore(store.read_requests(), asked_before)
    return Takeover(identity, epoch, resume, steering, coordinator)
