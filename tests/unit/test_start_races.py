"""What a start may find: another driver with other code beside it, and what earlier drivers left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.inmemory import MemoryLog, MemorySource, Range
from support.recovering import empty_database

from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count, Sum
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.coordinator import Plan
from txstream.core.errors import (
    CorruptStateError,
    IdentityMismatchError,
    ProgressMismatchError,
    ServiceUnavailableError,
    StaleAttemptError,
    StateTableError,
)
from txstream.core.semantics import Semantics
from txstream.core.transaction import Epoch, TransactionAttempt, Txid, attempt_id
from txstream.engine.commit.state_targets import StateTarget, state_targets
from txstream.engine.start.takeover import Settler, Takeover, Unsettled, check_identity, take_up
from txstream.plugins.proof.stores.memory import forget
from txstream.plugins.proof.zookeeper_tree import MemoryProgress, MemoryTree
from txstream.state import (
    BatchRecord,
    Commit,
    StateBackend,
    TableSpec,
    TopologyStates,
    fence_rules,
    open_database,
)

SOURCE = MemorySource(MemoryLog({}), "word string, x bigint")
NARROW = SqlState("counts", key="word string", value="n bigint")
WIDE = SqlState("counts", key="word string", value="n bigint, total bigint", defaults={"total": 0})
CODEC = MetaCodec(Range)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MORE = SqlState("more", key="word string", value="n bigint")


def code(*states: SqlState) -> Topology:
    builder = TransactionalTopologyBuilder("words", "rows", OpaqueSpout(SOURCE))
    for state in states:
        reducers: dict[str, Any] = {"n": Count(), "total": Sum("x")}
        bolt = SqlStateBolt(state, **{name: reducers[name] for name in state.value_names})
        builder.set_committer_bolt(state.table, bolt).fields_grouping("rows", "word")
    return builder.build()


class Place:
    """ZooKeeper and one store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.tree = MemoryTree()
        self.opened: list[StateBackend] = []

    def open(self) -> StateBackend:
        self.opened.append(open_database(self.url))
        return self.opened[-1]

    def start(
        self,
        topology: Topology,
        before: Callable[[str], None] | None = None,
        opened: Callable[[], StateBackend] | None = None,
        settlers: Sequence[Settler] = (),
    ) -> Takeover:
        """Start a driver; `before` is called with the name of each write to ZooKeeper, before the write."""

        def hook(when: str, write: str) -> None:
            if when == "before" and before is not None:
                before(write)

        def give_up(error: Exception) -> None:
            raise error

        store = MemoryProgress(self.tree, "words", CODEC, hook=hook)
        targets = self.targets(topology, opened)
        return take_up(topology, store, targets, CODEC, locked=give_up, settlers=settlers)

    def targets(
        self, topology: Topology, opened: Callable[[], StateBackend] | None = None
    ) -> list[StateTarget]:
        return state_targets(topology, self.url, lambda _: (opened or self.open)())

    def tables(self) -> dict[str, tuple[str, ...]]:
        with self.open().read_state("words") as state:
            return {table.name: tuple(table.value.names) for table in state.tables()}


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, unique: str, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        (tmp_path / "state.db").write_bytes(empty_database())
        url = f"sqlite:///{tmp_path / 'state.db'}"
    else:
        url = f"memory://{unique}"
    place = Place(url)
    yield place
    for store in place.opened:
        store.close()
    forget(unique)


def when(write: str, act: Callable[[], Any]) -> Callable[[str], None]:
    """Return a hook that calls `act` once, before this write."""
    acts = [act]

    def before(name: str) -> None:
        if name == write and acts:
            acts.pop()()

    return before


def test_a_state_that_joined_while_the_former_code_started_is_not_left_out(place: Place) -> None:
    """Otherwise it would miss every batch of the former code."""
    place.start(code(NARROW))
    join = when("claim_epoch", lambda: place.start(code(NARROW, MORE)))
    with pytest.raises(IdentityMismatchError, match="the state tables were counts, more and are counts now"):
        place.start(code(NARROW), join)
    assert place.start(code(NARROW, MORE)).identity.tables == ("counts", "more")


def test_a_settler_finishes_a_batch_under_the_new_fence_before_progress_is_read(place: Place) -> None:
    """As an operator's command would that died between the ledger and ZooKeeper."""
    topology = code(NARROW)
    first = place.start(topology)

    def settle(unsettled: Unsettled) -> None:
        (states,) = unsettled.states
        assert states.read_fence() is not None
        assert states.read_fence().attempt == unsettled.fence > attempt_id(first.epoch, 9)  # type: ignore[union-attr]
        metas = CODEC.encode(BatchMetas(carried={"p": Range(0, 4)}))
        under = TransactionAttempt(Txid(1), unsettled.fence)
        row = BatchRecord(
            "words", unsettled.identity.uuid, *(under.txid, under.attempt), states.life.semantics,
            "committed", metas, 0, 0, NOW, NOW, NOW, None,
        )  # fmt: skip
        with states.store.begin(states.life, "settling") as here:
            here.hold_fence(unsettled.fence)
            here.write_batch(row)

    taken = place.start(topology, settlers=[settle])
    assert taken.resume.progress.current == 2, "it was read after that"
    assert dict(taken.resume.progress.batches[Txid(1)].metas.carried) == {"p": Range(0, 4)}


def test_a_column_that_came_while_the_former_code_started_is_not_left_out(place: Place) -> None:
    place.start(code(NARROW))
    grow = when("claim_epoch", lambda: place.start(code(WIDE)))
    with pytest.raises(StateTableError, match=r"\('total' removed\)"):
        place.start(code(NARROW), grow)
    assert place.start(code(WIDE)).resume.progress.current == 1


def test_a_database_that_came_to_know_the_topology_since_the_first_check_is_not_joined(place: Place) -> None:
    """A driver over another ZooKeeper began it meanwhile. ZooKeeper here keeps nothing of the refused run."""
    topology, written = code(NARROW), list[str]()
    check_identity(topology, MemoryProgress(place.tree, "words", CODEC), place.targets(topology))
    here, place.tree = place.tree, MemoryTree()
    place.start(topology)
    place.tree = here
    with pytest.raises(ProgressMismatchError, match=r"is not in ZooKeeper, but .* holds its state"):
        place.start(topology, written.append)
    assert written == []


def test_the_same_state_may_join_under_two_drivers(place: Place) -> None:
    place.start(code(NARROW))
    join = when("claim_epoch", lambda: place.start(code(NARROW, MORE)))
    second = place.start(code(NARROW, MORE), join)
    assert second.identity.tables == ("counts", "more")
    assert second.epoch == 3


def test_a_topology_that_was_deleted_while_a_driver_started(place: Place) -> None:
    place.start(code(NARROW))
    with pytest.raises(CorruptStateError, match="was deleted"):
        place.start(code(NARROW), when("claim_epoch", lambda: place.tree.remove("/txstream")))


class Refusing:
    """A database in which nothing can join; it calls `meanwhile` before it refuses."""

    def __init__(self, store: StateBackend, meanwhile: Callable[[], Any]) -> None:
        self._store = store
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def of(self, *life: Any) -> TopologyStates:
        bound: Any = self
        return TopologyStates(bound, self._store.of(*life).life)

    def join(self, *arguments: Any, **options: Any) -> None:
        self._meanwhile()
        raise ServiceUnavailableError("the database is away")


class Sleeping(Refusing):
    """A database whose driver sleeps before it joins; `meanwhile` is called during the sleep."""

    def join(self, *arguments: Any, **options: Any) -> None:
        self._meanwhile()
        self._store.join(*arguments, **options)


def test_a_driver_of_before_does_not_change_what_a_rebuild_of_zookeeper_would_find(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise `recover` would lose the state that has joined, and batches of the former code would bypass
    it. In the store here, joining keeps whatever it is given, as a user's store may."""
    monkeypatch.setattr(fence_rules, "joining_keeps", lambda found: True)
    place.start(code(NARROW))
    sleeping: Any = Sleeping(place.open(), lambda: place.start(code(NARROW, MORE)))
    with pytest.raises(IdentityMismatchError):
        place.start(code(NARROW), opened=lambda: sleeping)
    fence = place.open().read_fence("words")
    assert fence is not None
    assert fence.identity is not None
    assert fence.identity["identity"]["tables"] == ["counts", "more"]


def test_joining_does_not_replace_what_a_leader_keeps(place: Place) -> None:
    taken = place.start(code(NARROW))
    store = place.open()
    before = store.read_fence("words")
    uuid = taken.identity.uuid
    store.of("words", uuid, Semantics.OPAQUE).join(first_run=False, identity={"n": 1})
    assert store.read_fence("words") == before


def test_an_identity_is_kept_under_the_fence_alone(place: Place) -> None:
    taken = place.start(code(NARROW))
    store, uuid = place.open(), taken.identity.uuid
    place.start(code(NARROW))
    before = store.read_fence("words")
    with pytest.raises(StaleAttemptError):
        store.of("words", uuid, Semantics.OPAQUE).keep_identity(attempt_id(1, 0), {"n": 1})
    assert store.read_fence("words") == before
    store.of("words", uuid, Semantics.OPAQUE).keep_identity(attempt_id(2, 0), {"n": 2})
    after = store.read_fence("words")
    assert after is not None
    assert after.identity == {"n": 2}
    with pytest.raises(ProgressMismatchError):
        store.of("words", "another", Semantics.OPAQUE).keep_identity(attempt_id(2, 0), {"n": 3})


def test_a_first_run_that_fails_leaves_what_another_driver_has_taken_up(place: Place) -> None:
    """Both drivers found nothing and began. By the time that the first one gives up, the second one leads."""
    led: list[Takeover] = []
    refusing: Any = Refusing(place.open(), lambda: led.append(place.start(code(NARROW))))
    with pytest.raises(ServiceUnavailableError):
        place.start(code(NARROW), opened=lambda: refusing)
    (leader,) = led
    fence = place.open().read_fence("words")
    assert fence is not None
    assert fence.attempt == attempt_id(leader.epoch, 0)
    again = place.start(code(NARROW))
    assert again.identity == leader.identity
    assert place.tables() == {"counts": ("n",)}


def test_a_first_run_that_fails_leaves_what_another_driver_has_begun(place: Place) -> None:
    """The second driver uses the first one's identity, so when it fails it has nothing to take back."""
    led: list[Takeover] = []
    refusing: Any = Refusing(place.open(), lambda: led.append(place.start(code(NARROW))))

    def start_first() -> None:
        led.append(place.start(code(NARROW)))

    with pytest.raises(ServiceUnavailableError):
        place.start(code(NARROW), when("create_identity", start_first), opened=lambda: refusing)
    assert place.start(code(NARROW)).identity == led[0].identity


def test_a_delete_that_arrives_late_takes_nothing_from_the_next_first_run(place: Place) -> None:
    """The delete was repeated and all was created anew, so the versions that it expects are there again."""
    refusing: Any = Refusing(place.open(), lambda: None)
    late = when("delete", place.tree.delay_next_write)
    with pytest.raises(ServiceUnavailableError):
        place.start(code(NARROW), late, opened=lambda: refusing)
    leader = place.start(code(NARROW))
    place.tree.deliver_late()
    assert place.start(code(NARROW)).identity == leader.identity


def test_a_first_run_that_fails_alone_takes_all_back(place: Place) -> None:
    refusing: Any = Refusing(place.open(), lambda: None)
    with pytest.raises(ServiceUnavailableError):
        place.start(code(NARROW), opened=lambda: refusing)
    assert place.start(code(WIDE)).epoch == 1
    assert place.tables() == {"counts": ("n", "total")}


def test_a_leader_knows_what_was_committed_in_part(place: Place) -> None:
    """A commit that has begun is replayed, even if the source no longer has anything of it."""
    taken = place.start(code(NARROW))
    begun = Commit(TransactionAttempt(Txid(1), attempt_id(1, 1)), {"partitions": {}}, {}, 0, NOW, NOW)
    place.open().of("words", taken.identity.uuid, Semantics.OPAQUE).begin_commit(begun)
    (plan,) = place.start(code(NARROW)).coordinator.sync()
    assert isinstance(plan, Plan)
    assert plan.replay


def test_what_a_later_run_misses_is_told_and_not_made_anew(place: Place) -> None:
    place.start(code(NARROW))
    store = MemoryProgress(place.tree, "words", CODEC)
    epoch = store.claim_epoch(Epoch(0))
    store.load()
    store.advance(Txid(1), attempt_id(epoch, 1), BatchMetas())
    assert place.open().delete("words", drop_state=True) == ["counts"]
    with pytest.raises(ProgressMismatchError, match="knows nothing of it"):
        place.start(code(NARROW))
    assert place.open().topologies() == []


def test_nothing_is_deleted_under_a_fence_that_is_above(place: Place) -> None:
    uuid = place.start(code(NARROW)).identity.uuid
    store = place.open()
    with pytest.raises(StaleAttemptError):
        store.delete("words", drop_state=True, uuid=uuid, attempt=attempt_id(0, 7))
    assert place.tables() == {"counts": ("n",)}
    assert store.delete("words", drop_state=True, uuid=uuid, attempt=attempt_id(1, 0)) == ["counts"]
    assert store.delete("words", drop_state=True, uuid=uuid, attempt=attempt_id(1, 0)) == []


def test_a_reader_that_does_not_know_a_column_belongs_to_a_driver_of_before(unique: str) -> None:
    place = Place(f"memory://{unique}")
    place.start(code(NARROW))
    place.start(code(WIDE))
    (bolt, semantics), *_ = code(NARROW).states
    keys = pa.table({"word": ["a"]})
    with pytest.raises(StaleAttemptError, match="has grown"):
        place.open().read(TableSpec(bolt.state, semantics, bolt.reducers), keys, before=Txid(1))
    forget(unique)
