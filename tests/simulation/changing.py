"""The actors of a topology that changes: drivers of its releases, and operators who rebuild ZooKeeper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulation.releases import FIRST, Release
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import (
    CorruptStateError,
    FencedError,
    IdentityMismatchError,
    ProgressMismatchError,
    ServiceUnavailableError,
    StaleAttemptError,
    StateTableError,
)
from txstream.core.fault_points import CrashError
from txstream.core.ledger_retention import Keep
from txstream.core.transaction import FIRST_TXID
from txstream.engine.loop.event_loop import EventLoop
from txstream.engine.loop.ledger_pruning import LedgerPruner
from txstream.engine.start.takeover import Takeover
from txstream.inspect.databases import databases_of
from txstream.plugins.audit.recover_from_ledgers import recover_in
from txstream.plugins.proof.simulation.driver import Actor, Progress, SimulatedDriver, UnexplainedError
from txstream.plugins.proof.simulation.program import Program
from txstream.plugins.proof.simulation.world import WrongResultError
from txstream.state import StateBackend
from txstream.zookeeper import ProgressStore

if TYPE_CHECKING:
    from simulation.changes import ChangingWorld


class ChangingDriver(SimulatedDriver):
    """A driver of one of several releases."""

    world: ChangingWorld
    release: Release

    def __init__(self, world: ChangingWorld, number: int, program: Program) -> None:
        self.losses = world.losses
        super().__init__(world, number, program)
        self._pruner = LedgerPruner(
            "t", [target.database for target in self.targets], Keep(None, 1), pause_seconds=0.0
        )

    def __str__(self) -> str:
        return f"driver {self.number} of release {self.release.number}"

    def pass_point(self, where: str, whose: object = "") -> None:
        super().pass_point(where, whose)
        if not self.is_started and self.losses != self.world.losses:
            # The driver's session, by which it was elected, is gone too.
            raise CrashError

    def step(self) -> None:
        try:
            super().step()
        except (CorruptStateError, ProgressMismatchError, UnexplainedError) as error:
            if not self._may_be_told(error):
                raise
            self._end(f"ends: {error}")

    def _may_be_told(self, error: Exception) -> bool:
        """Return whether history explains the error. A first run that is refused takes everything back."""
        world = self.world
        if self.losses != world.losses or world.is_lost or world.oracle.current == FIRST_TXID:
            return True
        return "is not in ZooKeeper" in str(error) and self._began_at != world.steps_done

    def _start(self) -> None:
        world = self.world
        self._began_at = world.steps_done
        before = world.what_counts()
        try:
            super()._start()
        except (IdentityMismatchError, StateTableError) as error:
            self._end(f"is refused: {error}")
            # States stay named if the database of a first run goes away before the run can be taken back.
            named = set(world.oracle.since) - {declared.table for declared in self.release.tables}
            has_all = not named and self.release.covers(world.oracle.declared)
            if has_all and "committed in part" not in str(error):
                raise WrongResultError(
                    f"{self} is refused, though it has all that the last one had"
                ) from error
            if self._began_at == world.steps_done and before != world.what_counts():
                raise WrongResultError(f"{self} is refused and has changed something") from error

    def _lead(self, taken: Takeover) -> None:
        world = self.world
        leads = self.store.read_epoch() == taken.epoch
        if leads and not self.release.covers(world.oracle.in_effect()):
            raise WrongResultError(f"{self} leads, though it lacks a state: {world.oracle.in_effect()}")
        super()._lead(taken)

    def _step(self, loop: EventLoop) -> None:
        if self.world.happens("prune"):
            self.world.note(f"{self} prunes")
            self._pruner.prune()
        else:
            super()._step(loop)


class Operator(Actor):
    """Somebody who types `txstream recover ID --from-ledger`."""

    world: ChangingWorld

    def __str__(self) -> str:
        return f"operator {self.number}"

    def step(self) -> None:
        world = self.world
        world.note(f"{self} recovers from the ledger")
        losses = world.losses
        try:
            found = recover_in("t", lambda codec: self._store_of(codec), self._databases())
        except CrashError:
            self._end("crashes")
        except ServiceUnavailableError as error:
            self._end(f"cannot recover: {error}")
        except (FencedError, StaleAttemptError, CorruptStateError, ProgressMismatchError) as error:
            # Somebody else was faster, or ZooKeeper was lost once more meanwhile.
            if world.happened_since(losses, self.started_at):
                self._end(f"gives up: {error}")
                return
            raise
        else:
            world.is_lost = world.is_lost and losses != world.losses
            self._end(f"has recovered: txid {found.current_txid} is next")

    def _store_of(self, codec: MetaCodec[Any]) -> ProgressStore:
        return Progress(self.world.tree, "t", codec, hook=self._hook)

    def _databases(self) -> list[StateBackend]:
        """Open the first database and those that fences name; sometimes all databases."""
        world = self.world
        self.started_at = world.steps_done
        every = world.chances.happens(0.3)
        pending = [server.url for server in world.servers] if every else [f"memory://{FIRST}"]
        opened: dict[str, StateBackend] = {}
        while pending:
            url = pending.pop(0)
            if url in opened:
                continue
            store = world.store_at(url, self)
            fence = store.read_fence("t")
            if fence is not None:
                opened[url] = store
                pending += databases_of(fence)
        return list(opened.values())
