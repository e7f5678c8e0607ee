"""Stores whose fence has a hole."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from support.wrong_states.registry import breaks
from txstream.core.transaction import AttemptId, TransactionAttempt
from txstream.plugins.proof.stores import layout
from txstream.plugins.proof.stores.layout import Transaction
from txstream.plugins.proof.stores.memory import MemoryBackend
from txstream.state import FenceRow, TopologyLife, TopologyStates
from txstream.state.commit_protocol import Writes


def put(here: Transaction, topology: str, uuid: str, attempt: AttemptId) -> None:
    found = here.get("fence", (topology,))
    identity = None if found is None else layout.read_fence(found).identity
    layout.put_fence(here, FenceRow(topology, uuid, attempt, identity))


@breaks("fence-only-grows")
class Sinking(MemoryBackend):
    def _raise(self, here: Transaction, life: TopologyLife, attempt: AttemptId, **options: Any) -> None:
        if options["may_be_equal"]:
            put(here, life.topology, self._own_fence(here, life).uuid, attempt)
        else:
            super()._raise(here, life, attempt, **options)


@breaks("fence-only-grows")
class RaisedOnce(MemoryBackend):
    """A leader that raises the fence again to the same epoch is refused."""

    def _raise(self, *arguments: Any, may_be_equal: bool) -> None:
        super()._raise(*arguments, may_be_equal=False)


@breaks("fence-only-grows")
class ThirtyTwoBits(MemoryBackend):
    def read_fence(self, topology: str) -> FenceRow | None:
        found = super().read_fence(topology)
        if found is None:
            return None
        return FenceRow(found.topology, found.uuid, AttemptId(found.attempt & (2**62 - 1)), found.identity)


@breaks("commit-raises-the-fence")
class ChecksOnly(MemoryBackend):
    """A commit checks the fence but does not raise it."""

    def _raise(self, here: Transaction, life: TopologyLife, attempt: AttemptId, **options: Any) -> None:
        row = self._own_fence(here, life)
        super()._raise(here, life, attempt, **options)
        if not options["may_be_equal"]:
            put(here, life.topology, life.uuid, row.attempt)


@breaks("raise-waits-for-commit", "raise-waits-for-beginning")
class RaisesAtOnce(MemoryBackend):
    """Each transaction sees the store as it was at its beginning, and waits for nobody."""

    @contextlib.contextmanager
    def transaction(
        self,
        *,
        exclusive: Sequence[str] = (),
        shared: Sequence[str] = (),
        timeout_seconds: float | None = None,
    ) -> Iterator[Transaction]:
        alone = object()
        names = [f"{name}/{id(alone)}" for name in exclusive]
        with super().transaction(exclusive=names, shared=shared, timeout_seconds=timeout_seconds) as here:
            yield here


@breaks("raise-waits-for-end")
class NeverSaysThatItWaits(TopologyStates):
    """Waiting for the lock ends in the wrong error."""

    def raise_fence(self, attempt: AttemptId, **options: Any) -> None:
        try:
            super().raise_fence(attempt, **options)
        except Exception as error:
            if options.get("lock_timeout_seconds") is not None and "has held the lock" in str(error):
                raise TimeoutError("locked") from error
            raise


@breaks("raise-waits-for-end")
class EndLooksOnly(MemoryBackend):
    """The end reads the fence but does not hold it."""

    def transaction(self, *, shared: Sequence[str] = (), **options: Any) -> Any:
        return super().transaction(shared=["nothing"] if shared else [], **options)


@breaks("raise-waits-for-writes")
class LooksAndThenWrites(MemoryBackend):
    class Bound(TopologyStates):
        def write(self, attempt: TransactionAttempt, writes: Writes) -> int:
            assert isinstance(self.store, MemoryBackend)
            with self.store.transaction() as here:
                if self.life.is_fenced:
                    self.store._hold(here, self.life, attempt.attempt)
            threading.Event().wait(0.005)  # long enough for others to get in between
            with self.store.transaction(shared=["nothing"]) as here:
                for spec, deltas in writes:
                    self.store._write(here, attempt, spec, self.store.prepare(spec, deltas))
            return sum(deltas.num_rows for _, deltas in writes)

    bound = Bound


class Snapshot(MemoryBackend):
    """A transaction writes back all that it has seen, over what others have written meanwhile."""

    @contextlib.contextmanager
    def transaction(
        self,
        *,
        exclusive: Sequence[str] = (),
        shared: Sequence[str] = (),
        timeout_seconds: float | None = None,
    ) -> Iterator[Transaction]:
        if not exclusive and not shared:
            with super().transaction() as here:
                yield here
            return
        with super().transaction(exclusive=exclusive, shared=shared, timeout_seconds=timeout_seconds) as here:
            with self._store.mutex:
                seen = {space: dict(kept) for space, kept in self._store.spaces.items()}
            changed: set[tuple[str, Any]] = set()
            yield _Noting(here, changed)
            threading.Event().wait(0.005)  # long enough for others to write too
            for space, kept in seen.items():
                for key, value in kept.items():
                    if (space, key) not in changed:
                        here.put(space, key, value)


class _Noting:
    def __init__(self, here: Transaction, changed: set[tuple[str, Any]]) -> None:
        self._here = here
        self._changed = changed

    def get(self, space: str, key: Any) -> Any:
        return self._here.get(space, key)

    def scan(self, space: str) -> Any:
        return self._here.scan(space)

    def put(self, space: str, key: Any, value: Any) -> None:
        self._changed.add((space, key))
        self._here.put(space, key, value)


breaks("topologies-do-not-disturb", "disjoint-shares-all-count")(Snapshot)


@breaks("topologies-do-not-disturb")
class OneAtATime(TopologyStates):
    """A commit fails while another topology's commit is open."""

    def commit(self, *arguments: Any, **options: Any) -> None:
        turn = _turns.setdefault(self.display_url, threading.Semaphore(1))
        if not turn.acquire(timeout=0.001):
            raise TimeoutError("two at once")
        try:
            threading.Event().wait(0.01)
            super().commit(*arguments, **options)
        finally:
            turn.release()


_turns: dict[str, threading.Semaphore] = {}
