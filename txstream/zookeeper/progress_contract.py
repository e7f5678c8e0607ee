"""The progress store's contract: what the engine may ask of it, whatever keeps the progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from txstream.batch_metas import BatchMetas
from txstream.failing_batch import FailingBatch, Wait
from txstream.placement import Assignment
from txstream.transaction import AttemptId, Epoch, Txid
from txstream.zookeeper.identity import Identity
from txstream.zookeeper.requests import Request, Requests
from txstream.zookeeper.znode_values import StoredBatch


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a topology stands. `current` commits next; `committed_by` committed the txid before it (None
    before the first). `batches` begins at current - 1 (at 1 before the first commit) and has no gap."""

    current: Txid
    committed_by: AttemptId | None
    batches: Mapping[Txid, StoredBatch]


class ProgressStore(Protocol):
    """One topology's progress, as one driver sees it.

    The order is `read_identity` / `create_identity`, `claim_epoch`, `load`, then `persist` and `advance`.
    While the store is away, every call waits; it raises WaitStoppedError or ServiceUnavailableError when it
    may wait no longer. Once another driver has claimed a newer epoch, every write raises FencedError. What
    cannot be read raises CorruptStateError with its path.
    """

    @property
    def topology_id(self) -> str: ...

    def read_identity(self) -> Identity | None:
        """Return the stored identity; None before the topology was first run."""

    def create_identity(self, identity: Identity) -> Identity:
        """Store `identity` and an empty progress in one write, unless there is one. Return the stored one."""

    def replace_identity(self, identity: Identity) -> None:
        """Store the identity from now on, because a state was added. Called after `claim_epoch`, by a leader
        that has read the present identity. Repeated until it is known to be stored. Raises FencedError, and
        CorruptStateError if there is no identity."""

    def read_epoch(self) -> Epoch:
        """Return the greatest epoch claimed so far; 0 before the first."""

    def mend_epoch(self) -> None:
        """Replace an unreadable stored epoch by a readable one. For `txstream recover`: what this stores is
        not above the fences; only what is claimed after it is."""

    def claim_epoch(self, at_least: Epoch) -> Epoch:
        """Claim and return 1 + the greater of the stored epoch and `at_least`.

        If several drivers claim at once, each gets an epoch of its own, and only the last one can write.
        Raises FencedError if others kept claiming before this one.
        """

    def verify(self) -> None:
        """Raise FencedError if the claimed epoch is no longer mine."""

    def load(self) -> Progress:
        """Return everything stored, as of one moment. Called after the fences were raised, before any write.

        Without a claim it only reads, which is what commands do. Raises CorruptStateError.
        """

    def check_size(self, metas: BatchMetas[Any]) -> None:
        """Raise MetaTooLargeError if `metas` could not be stored. Call it before the batch is emitted: after
        its commit it is too late to refuse the batch."""

    def persist(self, txid: Txid, metas: BatchMetas[Any]) -> BatchMetas[Any]:
        """Store the plan of the next txid, before anything of it is emitted. Return what is stored, which is
        another plan if one was there. Raises MetaTooLargeError, CoordinatorError (not the next txid)."""

    def amend(self, txid: Txid, metas: BatchMetas[Any]) -> None:
        """Store the plan of a txid that is not committed again, with the records that it leaves out. Repeated
        until it is known to be stored. Raises MetaTooLargeError, CoordinatorError (no such plan)."""

    def advance(self, txid: Txid, attempt: AttemptId, metas: BatchMetas[Any] | None) -> None:
        """Store that `attempt` has committed `txid`, the current one: current becomes txid + 1, the metas
        before txid are deleted, txid's own stay. `metas` is None if they were persisted. Repeated until it is
        known to be stored."""

    def rebuild(self, identity: Identity, progress: Progress) -> None:
        """Store these in place of whatever was there, readable or not. For `txstream recover`, after an epoch
        was claimed and every fence raised. Repeated until it is known to be stored."""

    def read_requests(self) -> Requests:
        """Return what operators have put in force, and their requests that wait for an answer. Without a
        claim it only reads. Called when a leader starts, and whenever `watch_requests` told of a change.

        Raises CorruptStateError."""

    def answer_request(self, request: Request, refused: str | None, told: Mapping[str, Any]) -> None:
        """Answer one of the waiting requests. `refused` says why it is refused; if None, it is in force from
        now on, for this leader and for all later ones. `told` is for whoever asked.

        Called on the driver, once per request, after it was carried out: an unanswered request goes to the
        next leader. Repeated until it is known to be stored."""

    def watch_requests(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` soon, and again whenever requests may have come. Return a function that ends this.
        The watch survives lost connections and sessions, and costs nothing while nobody asks.

        `changed` is called from a thread of ZooKeeper's client, so it must return at once and must not call
        this store; what it raises is logged."""

    def write_assignment(self, assignment: Assignment) -> None:
        """Store where tasks ran, for display: one round trip. A large assignment is cut and a lost answer is
        ignored, but FencedError and CorruptStateError (the topology was deleted) end the run as elsewhere."""

    def read_assignment(self) -> Assignment | None:
        """Return what any leader wrote last; None before the first. Raises CorruptStateError."""

    def write_failing(self, batch: FailingBatch) -> None:
        """Store why a batch fails, for display; otherwise as `write_assignment`."""

    def read_failing(self) -> FailingBatch | None:
        """Return what any leader wrote last, even if the batch was committed since; as `read_assignment`."""

    def write_waiting(self, waits: Sequence[Wait]) -> None:
        """Store what the leader waits for, for people; as `write_assignment`. Without waits, deletes it."""

    def read_waiting(self) -> tuple[Wait, ...]:
        """Return what the newest leader waits for, or did when it ended; as `read_assignment`."""

    def write_trees(self, document: Mapping[str, Any]) -> None:
        """Store how a topology of tracked tuples is doing, for people; as `write_assignment`."""

    def read_trees(self) -> Mapping[str, Any] | None:
        """Return what was stored last; as `read_assignment`."""

    def delete_everything(self, *, unless_led: bool = False) -> None:
        """Remove the topology's progress and identity, all or nothing. With `unless_led`, only while nobody
        has claimed an epoch; raises FencedError if somebody has."""
