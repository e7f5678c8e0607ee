"""A topology's part of the tree, which only the newest leader can change.

Invariants.
- Every change is one multi, sent by `FencedTree.multi` and nowhere else. It begins with a check of the
  version that `epoch` had when this driver claimed it, so that an older leader cannot change anything.
  Only operators' requests (`requests`) are written without it, into a znode of their own.
- An epoch is claimed by compare-and-set. The value holds an owner id made for this one claim, so that a claim
  whose answer was lost is recognised, and never taken for somebody else's or made twice.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Sequence

from txstream.core.errors import CoordinatorError, CorruptStateError, FencedError
from txstream.core.transaction import Epoch
from txstream.zookeeper.paths import Paths
from txstream.zookeeper.tree import Check, LostAnswerError, Operation, RefusedError, SetData, Tree
from txstream.zookeeper.znode_values import MAX_EPOCH, StoredEpoch

# Called with "before" or "after" and the write's name (create_identity, replace_identity, mend, claim_epoch,
# persist, amend, advance, answer_request, write_assignment, write_edges, write_failing, write_waiting,
# write_trees, outdate, rebuild, delete). The write raises the hook's error: LostAnswerError is a lost answer,
# any other a crash.
Hook = Callable[[str, str], None]

# Each lost race means that another driver made progress; this many in a row are no race.
MAX_RACES = 100

_MAX_STEPS = 500


def describe_this_process() -> str:
    """Return host:pid, so that an operator finds the driver."""
    return f"{socket.gethostname()}:{os.getpid()}"


class FencedTree:
    """`tree` below `paths`, written under the epoch that this driver has claimed."""

    def __init__(self, tree: Tree, paths: Paths, hook: Hook | None = None) -> None:
        self.tree = tree
        self._paths = paths
        self._hook = hook
        self._claim: tuple[StoredEpoch, int] | None = None

    @property
    def is_claimed(self) -> bool:
        return self._claim is not None

    def forget_claim(self) -> None:
        """Forget the claim: the topology was deleted, and there is no epoch any more."""
        self._claim = None

    def require_claim(self) -> tuple[StoredEpoch, int]:
        """Return my claim and the version of `epoch` under it. Raises CoordinatorError if there is none."""
        if self._claim is None:
            raise CoordinatorError(f"no epoch of topology {self._paths.topology_id!r} was claimed yet")
        return self._claim

    def read(self) -> Epoch:
        """Return the greatest epoch claimed so far; 0 before the first."""
        self.tree.sync()
        node = self.tree.get(self._paths.epoch)
        return Epoch(0) if node is None else StoredEpoch.decode(node.data, self._paths.epoch).epoch

    def claim(self, at_least: Epoch) -> Epoch:
        """Claim and return 1 + the greater of the stored epoch and `at_least`. Raises FencedError if other
        drivers kept claiming before this one."""
        owner = uuid.uuid4().hex
        races = failures = 0
        while True:
            stored, version = self._read_or_create()
            if stored.owner == owner:  # an answer was lost, the claim was not
                self._claim = (stored, version)
                return stored.epoch
            if races >= MAX_RACES:
                raise FencedError(
                    f"{races} other claims of topology {self._paths.topology_id!r} came before this "
                    f"driver's; the last was epoch {stored.epoch} by {stored.driver}"
                )
            claim = StoredEpoch(self._following(stored.epoch, at_least), owner, describe_this_process())
            try:
                self.multi("claim_epoch", [SetData(self._paths.epoch, claim.encode(), version)], version)
            except LostAnswerError:
                failures += 1
                self.tree.back_off(failures)
            except RefusedError:
                races += 1
            else:
                self._claim = (claim, version + 1)
                return claim.epoch

    def mend(self) -> None:
        """Replace an unreadable epoch by a readable one. The caller then claims one above every fence, or
        deletes everything. Raises FencedError.

        Each claim adds one to the version, so the version is at least the number of claims.
        """
        for failures in range(1, MAX_RACES):
            self.tree.sync()
            node = self.tree.get(self._paths.epoch)
            if node is None:
                return
            try:
                StoredEpoch.decode(node.data, self._paths.epoch)
            except CorruptStateError:
                epoch = Epoch(max(1, node.version))
                data = StoredEpoch(epoch, uuid.uuid4().hex, describe_this_process()).encode()
                try:
                    self.multi("mend", [SetData(self._paths.epoch, data, node.version)], node.version)
                except (RefusedError, LostAnswerError):
                    self.tree.back_off(failures)
            else:
                return
        raise FencedError(f"{self._paths.epoch} keeps changing while it is mended")

    def verify(self) -> None:
        """Raise FencedError if the claimed epoch is no longer mine, CorruptStateError if it is missing or was
        tampered with."""
        claim, version = self.require_claim()
        self.tree.sync()
        node = self.tree.get(self._paths.epoch)
        if node is None:
            raise CorruptStateError(
                f"{self._paths.epoch} is missing: the topology was deleted while this driver ran it"
            )
        stored = StoredEpoch.decode(node.data, self._paths.epoch)
        if stored.owner != claim.owner:
            raise FencedError(
                f"topology {self._paths.topology_id!r} has a newer leader: {stored.driver} claimed epoch "
                f"{stored.epoch} after this driver's {claim.epoch}; this driver has written nothing "
                "since and must exit"
            )
        if node.version != version:
            raise CorruptStateError(
                f"{self._paths.epoch} has version {node.version}, expected {version}: "
                "something other than txstream writes to it"
            )

    def outdate(self) -> None:
        """Raise the version of `epoch` above every epoch so far, under my claim.

        Each claim adds one to the version and at least one to the epoch, so no earlier driver expects such a
        version. In a tree that was emptied or restored, versions repeat; without this, a driver that was
        frozen meanwhile might find the version that it claimed. Raises FencedError.
        """
        failures = 0
        claim, version = self.require_claim()
        while version <= claim.epoch:
            steps = range(min(claim.epoch + 1 - version, _MAX_STEPS))
            data = claim.encode()
            problem = self.try_multi(
                "outdate", [SetData(self._paths.epoch, data, version + n) for n in steps]
            )
            if problem is None:
                version += len(steps)
            else:
                failures += 1
                if failures >= MAX_RACES:
                    raise CorruptStateError(f"{self._paths.epoch} keeps changing: {problem}")
                self.tree.back_off(failures)
                self.tree.sync()
                node = self.tree.get(self._paths.epoch)
                if node is None or StoredEpoch.decode(node.data, self._paths.epoch).owner != claim.owner:
                    self.verify()  # raises, and says who leads now
                else:
                    version = node.version
            self._claim = (claim, version)

    def version_to_check(self) -> int:
        """Return the version for writes that need no claim (create, delete): of my epoch or, if I have none,
        of the present one."""
        if self._claim is None:
            return self._read_or_create()[1]
        self.verify()
        return self._claim[1]

    def version_before_claims(self) -> int:
        """Return the version of `epoch` while nobody has claimed it; raise FencedError if somebody has. With
        it, a late delete cannot be applied to a topology that was made again and has a leader."""
        stored, version = self._read_or_create()
        if stored.epoch > 0:
            raise FencedError(
                f"topology {self._paths.topology_id!r} is led by {stored.driver}, which has claimed epoch "
                f"{stored.epoch}"
            )
        return version

    def multi(self, write: str, operations: Sequence[Operation], epoch_version: int) -> None:
        """Send the write: nothing changes in any other way. Raises RefusedError or LostAnswerError."""
        if self._hook is not None:
            self._hook("before", write)
        self.tree.multi([Check(self._paths.epoch, epoch_version), *operations])
        if self._hook is not None:
            self._hook("after", write)

    def try_multi(self, write: str, operations: Sequence[Operation]) -> RefusedError | LostAnswerError | None:
        """Write under my claim. Return None if it is known to be stored, otherwise what happened."""
        try:
            self.multi(write, operations, self.require_claim()[1])
        except (RefusedError, LostAnswerError) as problem:
            return problem
        return None

    def _following(self, stored: Epoch, at_least: Epoch) -> Epoch:
        epoch = 1 + max(stored, at_least)
        if epoch > MAX_EPOCH:
            raise CorruptStateError(f"{self._paths.epoch}: epoch {epoch} does not fit 31 bits")
        return Epoch(epoch)

    def _read_or_create(self) -> tuple[StoredEpoch, int]:
        self.tree.sync()
        node = self.tree.get(self._paths.epoch)
        if node is None:
            self.tree.ensure(self._paths.base)
            node = self.tree.put_if_absent(self._paths.epoch, StoredEpoch(Epoch(0), None, None).encode())
        return StoredEpoch.decode(node.data, self._paths.epoch), node.version
