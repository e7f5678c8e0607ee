"""The progress store over a tree of znodes.

Invariants.
- `current` and the metas (from current - 1 on, without a gap) change together or not at all, under the epoch
  that this driver has claimed (`fenced_tree`).
- Every operation carries the version that its znode had when it was last read or written here. A write whose
  answer is lost can therefore be repeated, and can arrive late, without being applied twice.
- After a lost or refused write nothing is assumed: epoch, current and metas are read back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.errors import CoordinatorError, CorruptStateError, ServiceUnavailableError
from txstream.core.transaction import FIRST_TXID, AttemptId, Epoch, Txid
from txstream.zookeeper.fenced_tree import MAX_RACES, FencedTree, Hook
from txstream.zookeeper.identity import Identity
from txstream.zookeeper.notes import Notes
from txstream.zookeeper.paths import Paths
from txstream.zookeeper.request_queue import LeaderRequests
from txstream.zookeeper.requests import Request, Requests
from txstream.zookeeper.tree import (
    Check,
    Create,
    Delete,
    LostAnswerError,
    Node,
    Operation,
    RefusedError,
    SetData,
    Tree,
)
from txstream.zookeeper.znode_values import MAX_ATTEMPT, Progress, StoredBatch, StoredCurrent


class ProgressStore:
    """One topology's progress, as one driver sees it.

    May be called from several threads; calls are served one at a time. What varies is the tree.

    The order is `read_identity` / `create_identity`, `claim_epoch`, `load`, then `persist` and `advance`.
    While the store is away, every call waits; it raises WaitStoppedError or ServiceUnavailableError when it
    may wait no longer. Once another driver has claimed a newer epoch, every write raises FencedError. What
    cannot be read raises CorruptStateError with its path.
    """

    def __init__(self, tree: Tree, paths: Paths, codec: MetaCodec[Any], *, hook: Hook | None = None) -> None:
        self._tree = tree
        self._paths = paths
        self._codec = codec
        self._fenced = FencedTree(tree, paths, hook)
        self._requests = LeaderRequests(self._fenced, paths)
        self._lock = threading.RLock()
        self.notes = Notes(self._fenced, paths, self._lock)
        self._current: tuple[Txid, int] | None = None
        self._meta_versions: dict[Txid, int] = {}

    @property
    def topology_id(self) -> str:
        return self._paths.topology_id

    # --- identity and epoch ---------------------------------------------------------------------------

    def read_identity(self) -> Identity | None:
        """Return the stored identity; None before the topology was first run."""
        path = self._paths.identity
        with self._lock:
            self._tree.sync()
            node = self._tree.get(path)
            if node is None:
                if self._tree.get(self._paths.coordinator) is None:
                    return None
                node = self._tree.get(path)  # both may have been created between our two reads
            if node is None:
                raise CorruptStateError(
                    f"{path} is missing, though {self._paths.coordinator} is there; they are created in one "
                    "write, so somebody has deleted it"
                )
            return Identity.decode(node.data, path)

    def beside(self, topology_id: str) -> ProgressStore:
        """Return the store of another topology in the same ZooKeeper."""
        return ProgressStore(self._tree, Paths(self._paths.root, topology_id), self._codec)

    def create_identity(self, identity: Identity) -> Identity:
        """Store `identity` and an empty progress in one write, unless there is one. Return the stored one."""
        operations = [
            Create(self._paths.identity, identity.encode()),
            Create(self._paths.coordinator, b""),
            Create(self._paths.current, StoredCurrent(FIRST_TXID, None).encode()),
            Create(self._paths.metas, b""),
            Create(self._paths.requests, b""),
        ]
        problem: RefusedError | LostAnswerError | None = None
        with self._lock:
            for failures in range(1, MAX_RACES):
                stored = self.read_identity()
                if stored is not None:
                    return stored
                try:
                    self._fenced.multi("create_identity", operations, self._fenced.version_to_check())
                except LostAnswerError as lost:
                    problem = lost
                    self._tree.back_off(failures)
                except RefusedError as refused:
                    problem = refused
                else:
                    return identity
        raise CorruptStateError(f"{self._paths.identity} cannot be created: {problem}")

    def replace_identity(self, identity: Identity) -> None:
        """Store the identity from now on, because a state was added. Called after `claim_epoch`, by a leader
        that has read the present identity. Repeated until it is known to be stored. Raises FencedError, and
        CorruptStateError if there is no identity."""
        path = self._paths.identity
        with self._lock:
            self._fenced.require_claim()
            failures = 0
            while True:
                node = self._tree.get(path)
                if node is None:
                    raise CorruptStateError(f"{path} is missing, though the topology runs; it was deleted")
                if Identity.decode(node.data, path) == identity:
                    return
                operation = SetData(path, identity.encode(), node.version)
                problem = self._fenced.try_multi("replace_identity", [operation])
                if problem is None:
                    return
                self._fenced.verify()
                if isinstance(problem, RefusedError) and self._tree.get(path) == node:
                    _fail_if_refused(problem)
                failures += 1
                self._tree.back_off(failures)

    def read_epoch(self) -> Epoch:
        """Return the greatest epoch claimed so far; 0 before the first."""
        with self._lock:
            return self._fenced.read()

    def mend_epoch(self) -> None:
        """Replace an unreadable stored epoch by a readable one. For `txstream recover`: what this stores is
        not above the fences; only what is claimed after it is."""
        with self._lock:
            self._fenced.mend()

    def claim_epoch(self, at_least: Epoch) -> Epoch:
        """Claim and return 1 + the greater of the stored epoch and `at_least`.

        If several drivers claim at once, each gets an epoch of its own, and only the last one can write.
        Raises FencedError if others kept claiming before this one.
        """
        with self._lock:
            self._current = None
            return self._fenced.claim(at_least)

    def verify(self) -> None:
        """Raise FencedError if the claimed epoch is no longer mine."""
        with self._lock:
            self._fenced.verify()

    # --- reading --------------------------------------------------------------------------------------

    def load(self) -> Progress:
        """Return everything stored, as of one moment. Called after the fences were raised, before any write.

        Without a claim it only reads, which is what commands do. Raises CorruptStateError.
        """
        with self._lock:
            for _ in range(MAX_RACES):
                self._tree.sync()
                before = self._tree.get(self._paths.current)
                try:
                    progress, versions = self._read_progress(before)
                except CorruptStateError:
                    # Progress that changes while it is read may look corrupt; only if it stands still, it is.
                    if self._tree.get(self._paths.current) == before:
                        raise
                    continue
                if before is not None and self._tree.get(self._paths.current) == before:
                    if self._fenced.is_claimed:
                        self._fenced.verify()
                    self._current = (progress.current, before.version)
                    self._meta_versions = versions
                    return progress
        raise ServiceUnavailableError(
            f"the progress of topology {self.topology_id!r} changes faster than it can be read; try again"
        )

    def _read_progress(self, current: Node | None) -> tuple[Progress, dict[Txid, int]]:
        names = self._tree.children(self._paths.metas)
        if current is None or names is None:
            missing = self._paths.current if current is None else self._paths.metas
            raise CorruptStateError(
                f"{missing} is missing; it is created with the topology's identity and never deleted alone"
            )
        position = StoredCurrent.decode(current.data, self._paths.current)
        txids = sorted(self._txid_of(name) for name in names)
        first = max(FIRST_TXID, Txid(position.txid - 1))
        if txids != list(range(first, first + len(txids))) or (position.txid > FIRST_TXID and not txids):
            raise CorruptStateError(
                f"{self._paths.metas} has {_listed(txids)}; with {self._paths.current} at {position.txid} it "
                f"must begin at {first} and have no gap"
            )
        batches, versions = {}, {}
        for txid in txids:
            path = self._paths.meta(txid)
            node = self._tree.get(path)
            if node is None:
                raise CorruptStateError(f"{path} has vanished while it was read")
            batch = StoredBatch.decode(node.data, path, self._codec)
            if batch.attempt not in ((None, position.attempt) if txid < position.txid else (None,)):
                raise CorruptStateError(
                    f"{path}: its attempt is {batch.attempt}, which contradicts {self._paths.current}: "
                    f"txid {position.txid} is current, after attempt {position.attempt}"
                )
            batches[txid], versions[txid] = batch, node.version
        return Progress(position.txid, position.attempt, batches), versions

    def _txid_of(self, name: str) -> Txid:
        if not (name.isascii() and name.isdecimal() and str(int(name)) == name and name != "0"):
            raise CorruptStateError(f"{self._paths.metas}/{name}: {name!r} is not a txid")
        return Txid(int(name))

    # --- writing --------------------------------------------------------------------------------------

    def check_size(self, metas: BatchMetas[Any]) -> None:
        """Raise MetaTooLargeError if `metas` could not be stored. Call it before the batch is emitted: after
        its commit it is too late to refuse the batch."""
        # With the longest attempt id that there is, so that what passes here passes with any id.
        StoredBatch(metas, AttemptId(MAX_ATTEMPT)).check_size(self._codec)

    def persist(self, txid: Txid, metas: BatchMetas[Any]) -> BatchMetas[Any]:
        """Store the plan of the next txid, before anything of it is emitted. Return what is stored, which is
        another plan if one was there. Raises MetaTooLargeError, CoordinatorError (not the next txid)."""
        with self._lock:
            current, version = self._require_loaded()
            following = Txid(max(self._meta_versions, default=current - 1) + 1)
            if not current <= txid <= following:
                raise CoordinatorError(
                    f"the plan of txid {txid} cannot be stored: current is {current}, {following} comes next"
                )
            path = self._paths.meta(txid)
            # Without the check of `current`, a repeated persist that arrives late would bring back metas that
            # an advance has deleted meanwhile.
            operations: list[Operation] = [
                Check(self._paths.current, version),
                Create(path, StoredBatch(metas, None).encode(self._codec)),
            ]
            failures = 0
            while (problem := self._fenced.try_multi("persist", operations)) is not None:
                self._fenced.verify()
                node = self._tree.get(path)
                if node is not None:
                    stored = self._adopt(node, path)
                    self._meta_versions[txid] = node.version
                    return stored
                _fail_if_refused(problem)
                failures += 1
                self._tree.back_off(failures)
            self._meta_versions[txid] = 0
            return metas

    def _adopt(self, node: Node, path: str) -> BatchMetas[Any]:
        batch = StoredBatch.decode(node.data, path, self._codec)
        if batch.attempt is not None:
            raise CorruptStateError(
                f"{path}: a plan that is yet to be emitted carries attempt {batch.attempt}, as if committed"
            )
        return batch.metas

    def amend(self, txid: Txid, metas: BatchMetas[Any]) -> None:
        """Store the plan of a txid that is not committed again, with the records that it leaves out. Repeated
        until it is known to be stored. Raises MetaTooLargeError, CoordinatorError (no such plan)."""
        with self._lock:
            current, current_version = self._require_loaded()
            version = self._meta_versions.get(txid)
            if txid < current or version is None:
                raise CoordinatorError(f"the plan of txid {txid} cannot be amended: current is {current}")
            path, data = self._paths.meta(txid), StoredBatch(metas, None).encode(self._codec)
            operations: list[Operation] = [
                Check(self._paths.current, current_version),
                SetData(path, data, version),
            ]
            failures = 0
            while (problem := self._fenced.try_multi("amend", operations)) is not None:
                self._fenced.verify()
                node = self._tree.get(path)
                if node is not None and (node.version, node.data) == (version + 1, data):
                    break
                _fail_if_refused(problem)
                failures += 1
                self._tree.back_off(failures)
            self._meta_versions[txid] = version + 1

    def advance(self, txid: Txid, attempt: AttemptId, metas: BatchMetas[Any] | None) -> None:
        """Store that `attempt` has committed `txid`, the current one: current becomes txid + 1, the metas
        before txid are deleted, txid's own stay. `metas` is None if they were persisted. Repeated until it is
        known to be stored."""
        with self._lock:
            current, version = self._require_loaded()
            if txid != current:
                raise CoordinatorError(f"txid {txid} cannot be advanced: current is {current}")
            following = StoredCurrent(Txid(txid + 1), attempt)
            meta_version, meta_operation = self._store_metas(txid, attempt, metas)
            older = [t for t in self._meta_versions if t < txid]
            operations: list[Operation] = [
                SetData(self._paths.current, following.encode(), version),
                meta_operation,
                *(Delete(self._paths.meta(t), self._meta_versions[t]) for t in older),
            ]
            failures = 0
            while (problem := self._fenced.try_multi("advance", operations)) is not None:
                self._fenced.verify()
                if self._is_stored(following, version + 1, txid, meta_version):
                    break
                _fail_if_refused(problem)
                failures += 1
                self._tree.back_off(failures)
            self._current = (following.txid, version + 1)
            self._meta_versions[txid] = meta_version
            for old in older:
                del self._meta_versions[old]

    def _store_metas(
        self, txid: Txid, attempt: AttemptId, metas: BatchMetas[Any] | None
    ) -> tuple[int, Operation]:
        """Return the version that txid's metas will have, and the operation that makes it so."""
        path, version = self._paths.meta(txid), self._meta_versions.get(txid)
        if metas is None:
            if version is None:
                raise CoordinatorError(f"txid {txid} cannot be advanced: its metas were never stored")
            return version, Check(path, version)
        data = StoredBatch(metas, attempt).encode(self._codec)
        if version is None:
            return 0, Create(path, data)
        return version + 1, SetData(path, data, version)

    def _is_stored(self, following: StoredCurrent, version: int, txid: Txid, meta_version: int) -> bool:
        """Return whether our own advance is stored. An attempt advances once, with the versions asked for."""
        node = self._tree.get(self._paths.current)
        if node is None:
            raise CorruptStateError(f"{self._paths.current} is missing, though its epoch is still mine")
        if StoredCurrent.decode(node.data, self._paths.current) != following or node.version != version:
            return False
        path = self._paths.meta(txid)
        meta = self._tree.get(path)
        if meta is None or meta.version != meta_version:
            found = "missing" if meta is None else f"at version {meta.version}"
            raise CorruptStateError(
                f"{path} is {found}, expected version {meta_version}, as written together with "
                f"{self._paths.current}"
            )
        return True

    def _require_loaded(self) -> tuple[Txid, int]:
        self._fenced.require_claim()
        if self._current is None:
            raise CoordinatorError(f"the progress of topology {self.topology_id!r} was not loaded yet")
        return self._current

    def replace(self, write: Callable[[FencedTree, Paths], None]) -> None:
        """Have `write` store something else in place of whatever was there, readable or not. For
        `txstream recover`, after an epoch was claimed and every fence raised."""
        with self._lock:
            self._current = None
            self._fenced.outdate()
            write(self._fenced, self._paths)

    # --- for operators --------------------------------------------------------------------------------

    def read_requests(self) -> Requests:
        """Return what operators have put in force, and their requests that wait for an answer. Without a
        claim it only reads. Called when a leader starts, and whenever `watch_requests` reported a change.

        Raises CorruptStateError."""
        with self._lock:
            return self._requests.read()

    def answer_request(self, request: Request, refused: str | None, told: Mapping[str, Any]) -> None:
        """Answer one of the waiting requests. `refused` says why it is refused; if None, it is in force from
        now on, for this leader and for all later ones. `told` is for the one who asked.

        Called on the driver, once per request, after it was carried out: an unanswered request goes to the
        next leader. Repeated until it is known to be stored."""
        with self._lock:
            self._requests.answer(request, refused, told)

    def watch_requests(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` soon, and again whenever requests may have come. Return a function that ends this.
        The watch survives lost connections and sessions, and costs nothing while there are no requests.

        `changed` is called from a thread of ZooKeeper's client, so it must return at once and must not call
        this store; what it raises is logged."""
        # Without the lock: `changed` may be called at once, from another thread.
        return self._requests.watch(changed)

    # --- deleting -------------------------------------------------------------------------------------

    def delete_everything(self, *, unless_led: bool = False) -> None:
        """Remove the topology's progress and identity, all or nothing. With `unless_led`, only while nobody
        has claimed an epoch; raises FencedError if somebody has."""
        problem: RefusedError | LostAnswerError | None = None
        with self._lock:
            if not unless_led:
                self._fenced.mend()
            for failures in range(1, MAX_RACES):
                deletes = self._deletes(self._paths.base)
                if not deletes:
                    break
                fenced = self._fenced
                version = fenced.version_before_claims() if unless_led else fenced.version_to_check()
                try:
                    fenced.multi("delete", deletes, version)
                except LostAnswerError as lost:
                    problem = lost
                    self._tree.back_off(failures)
                except RefusedError as refused:
                    problem = refused
                else:
                    self._fenced.forget_claim()
            else:
                raise ServiceUnavailableError(
                    f"{self._paths.base} keeps changing while it is to be deleted ({problem}); "
                    "stop the driver that runs it and try again"
                )
            self._fenced.forget_claim()
            self._current = None
            self._meta_versions = {}
            # What is left belongs to the election; it stays as long as there is a candidate.
            if self._tree.discard(self._paths.leader):
                self._tree.discard(self._paths.base)

    def _deletes(self, path: str) -> list[Operation]:
        """Return deletes of everything at and below `path`, children first, except base and election."""
        node, names = self._tree.get(path), self._tree.children(path)
        if node is None or names is None:
            return []
        children = (f"{path}/{name}" for name in sorted(names))
        below = [child for child in children if child != self._paths.leader]
        operations = [operation for child in below for operation in self._deletes(child)]
        return operations if path == self._paths.base else [*operations, Delete(path, node.version)]


def _fail_if_refused(problem: RefusedError | LostAnswerError) -> None:
    """Raise CorruptStateError if the write was refused. Everything was read back, the epoch is mine and
    nothing was stored, so nothing that txstream did explains a refusal."""
    if isinstance(problem, RefusedError):
        raise CorruptStateError(
            f"{problem}, which is not how txstream left it: something else writes there"
        ) from problem


def _listed(txids: Sequence[Txid]) -> str:
    if not txids:
        return "no txids"
    return f"txids {', '.join(map(str, txids[:10]))}{', ...' if len(txids) > 10 else ''}"
