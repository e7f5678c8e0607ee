"""Rows that go, from a topology on: what marks a removal, what the fold keeps of a key, what is refused, and
what the commands say."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from txstream import DeadLetters, inspect
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.spouts import NonTransactionalSpout, OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlTable
from txstream.api.topology import Topology
from txstream.bolts.append import SqlAppendBolt
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import StateValueError, TopologyError
from txstream.core.fault_points import Point
from txstream.plugins.audit.fsck_run import fsck_in
from txstream.plugins.proof.zookeeper_tree import MemoryProgress
from txstream.settings import Settings
from txstream.spouts.memory import MemorySpout
from txstream.state import StateDatabase
from txstream.testing import TopologyTest

FIELDS = (
    "id string, name string, at bigint, op string, gone boolean, code int, value binary, "
    "topic string, partition int, offset bigint"
)
SPOUTS = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout, NonTransactionalSpout])


def users(**options: Any) -> SqlTable:
    given = {"removed_by": "op = 'd'", "key": "id string", **options}
    return SqlTable("users", "name string, at bigint", on_conflict="replace", **given)


def records(*changes: tuple[str, str | None, int], partition: int = 0) -> list[tuple[Any, ...]]:
    """Return records of (id, name, at); without a name they remove the row."""
    return [
        (key, name, at, "d" if name is None else "u", name is None, -1 if name is None else 1,
         None if name is None else b"", "users", partition, offset)
        for offset, (key, name, at) in enumerate(changes)
    ]  # fmt: skip


def topology(source: MemorySpout, table: SqlTable, spout: Any = OpaqueSpout, most: int = 100) -> Topology:
    builder = TransactionalTopologyBuilder("mirror", "users", spout(source, max_batch_records=most))
    builder.set_bolt("store", SqlAppendBolt(table), parallelism=2).local_or_shuffle_grouping("users")
    return builder.build()


def run(
    given: dict[str, list[tuple[Any, ...]]], table: SqlTable, spout: Any = OpaqueSpout, **options: Any
) -> Any:
    with (
        MemorySpout(FIELDS, given) as source,
        TopologyTest(topology(source, table, spout, **options)) as test,
    ):
        test.run()
        return {key: values[0] for key, values in test.table("users").items()}


CHANGES = [
    ("a", "ann", 1), ("b", "bob", 2), ("a", None, 3), ("a", "Ann", 4), ("b", None, 5), ("c", None, 6),
    ("a", None, 7), ("b", "Bob", 8), ("d", "dan", 9), ("d", None, 10), ("e", "eve", 11),
]  # fmt: skip


@SPOUTS
@pytest.mark.parametrize("most", [1, 2, 3, 20])
def test_a_row_goes_and_comes_again_however_batches_are_cut(spout: Any, most: int) -> None:
    assert run({"p0": records(*CHANGES)}, users(), spout, most=most) == {"b": "Bob", "e": "eve"}


@pytest.mark.parametrize("said", ["op = 'd'", "gone", "code = -1", "value is null", " value  IS NULL "])
def test_what_marks_a_removal(said: str) -> None:
    assert run({"p0": records(*CHANGES)}, users(removed_by=said), most=2) == {"b": "Bob", "e": "eve"}


@pytest.mark.parametrize(("said", "place"), [("op = 'd'", 3), ("gone", 4), ("code = -1", 5)])
def test_a_condition_that_is_null_removes_nothing(said: str, place: int) -> None:
    given = records(("a", "ann", 1), ("b", "bob", 2), ("a", None, 3), ("b", None, 4))
    given[2] = (*given[2][:place], None, *given[2][place + 1 :])
    for most in (1, 4):
        assert run({"p0": given}, users(removed_by=said), most=most) == {"a": None}


@SPOUTS
def test_the_greatest_of_a_sequence_wins_however_records_come(spout: Any) -> None:
    found = []
    for seed in range(6):
        chance = random.Random(seed)
        mixed = chance.sample(CHANGES, len(CHANGES))
        given = {f"p{at}": records(*mixed[at::2], partition=at) for at in range(2)}
        found.append(run(given, users(sequence_by="at"), spout, most=chance.choice([1, 2, 3, 20])))
    assert found == [{"b": "Bob", "e": "eve"}] * 6


def test_a_sequence_without_removals() -> None:
    given = {"p0": records(("a", "new", 5), ("b", "b", 1)), "p1": records(("a", "old", 4), partition=1)}
    for most in (1, 20):
        assert run(given, users(removed_by=None, sequence_by="at"), most=most) == {"a": "new", "b": "b"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"removed_by": "op = 'd' or op = 't'"}, "it must be like"),
        ({"removed_by": 7}, "it must be like"),
        ({"removed_by": "deleted"}, "'deleted', which its input does not have"),
        ({"removed_by": "op"}, "field 'op', whose type is string"),
        ({"removed_by": "op = 3"}, "field 'op', whose type is string"),
        ({"removed_by": "at = 'd'"}, "field 'at', whose type is bigint"),
    ],
)
def test_a_condition_that_cannot_be(options: dict[str, Any], expected: str) -> None:
    with MemorySpout(FIELDS, {}) as source, pytest.raises(TopologyError, match=expected):
        topology(source, users(**options))


@pytest.mark.parametrize("place", [0, 2], ids=["key", "sequence"])
def test_a_null_is_refused_with_its_offset(place: int) -> None:
    wrong: list[Any] = ["a", None, 3]
    wrong[place] = None
    given = {"p0": records(("a", "ann", 1), tuple(wrong))}
    with pytest.raises(StateValueError, match=r"got a null, in .*offset=1"):
        run(given, users(sequence_by="at"))


@pytest.mark.parametrize("path", ["driver", "executors"])
@pytest.mark.parametrize("at", [Point.INSIDE_COMMIT, Point.BETWEEN_COMMITS, Point.AFTER_COMMIT])
def test_two_databases_whose_driver_dies_in_a_commit(tmp_path: Path, path: Any, at: Point) -> None:
    """The replay lacks a partition, so what the second batch has removed there comes back until later."""
    given = {
        "p0": records(("a", "ann", 1), ("b", "bob", 2), ("a", None, 3), ("d", "dan", 4)),
        "p1": records(("x", "xia", 1), ("y", "yan", 2), ("x", None, 3), ("y", "Yan", 4), partition=1),
    }
    second = SqlTable(
        "others",
        "name string, at bigint",
        key="id string",
        on_conflict="replace",
        removed_by="gone",
        url=f"sqlite:///{tmp_path / 'second.db'}",
    )
    with MemorySpout(FIELDS, given, max_records_per_partition=2) as source:
        builder = TransactionalTopologyBuilder("two", "users", OpaqueSpout(source), commit=path)
        builder.set_bolt("store", SqlAppendBolt(users()), 2).fields_grouping("users", "id")
        builder.set_bolt("again", SqlAppendBolt(second), 2).fields_grouping("users", "id")
        with TopologyTest(builder, database=f"sqlite:///{tmp_path / 'first.db'}") as test:
            test.commit(1)
            test.crash(at=at, txid=2)
            source.hide("p1")
            test.restart()
            if at is not Point.AFTER_COMMIT:  # otherwise nothing is left to commit
                test.commit()
            by_two = test.table("users")
            assert by_two == test.table("others")
            replayed = at is not Point.AFTER_COMMIT
            there = {"b": ("bob", 2), "d": ("dan", 4), "x": ("xia", 1), "y": ("yan", 2)}
            assert by_two == (there if replayed else {"b": ("bob", 2), "d": ("dan", 4), "y": ("Yan", 4)})
            source.show("p1")
            test.run()
            assert test.table("users") == {"b": ("bob", 2), "d": ("dan", 4), "y": ("Yan", 4)}
            assert test.table("others") == test.table("users")


def test_a_removal_without_a_key_is_a_dead_letter(tmp_path: Path) -> None:
    given = records(("a", "ann", 1), ("b", "bob", 2), ("", None, 3), ("b", None, 4))
    given[2] = (None, *given[2][1:])
    with MemorySpout(FIELDS, {"p0": given}) as source:
        letters = DeadLetters(max_share=1.0)
        builder = TransactionalTopologyBuilder("mirror", "users", OpaqueSpout(source), dead_letters=letters)
        builder.set_bolt("store", SqlAppendBolt(users())).local_or_shuffle_grouping("users")
        with TopologyTest(builder, database=f"sqlite:///{tmp_path / 'state.db'}") as test:
            test.run()
            assert test.table("users") == {"a": ("ann", 1)}
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as database:
        dead = database.execute("SELECT place, message FROM txstream_dead_letter").fetchall()
    assert [place for place, _ in dead] == ["p0@2"]
    assert "key column 'id' of table 'users' got a null" in dead[0][1]


def test_what_the_commands_say(tmp_path: Path) -> None:
    settings = Settings(database=f"sqlite:///{tmp_path / 'state.db'}")
    given = {"p0": records(*CHANGES[:6])}
    with MemorySpout(FIELDS, given) as source:
        made = topology(source, users(), most=2)
        with TopologyTest(made, database=settings.database) as test:
            test.run()
            test.crash()

            def store(codec: Any = None) -> MemoryProgress:
                kept = codec or MetaCodec(made.spout.source.meta_type)
                return MemoryProgress(test._control._world.tree, made.id, kept)

            with contextlib.closing(StateDatabase(str(settings.database))) as database:
                assert fsck_in(made.id, store, [database], Settings(), topology=made).findings == ()
        found = inspect.diff("mirror", "users", 3, settings)
        assert [(dict(row.key), row.before, row.after) for row in found.removed] == [
            ({"id": "b"}, {"name": "bob", "at": 2}, None)
        ]
        assert (found.created, found.changed, found.unchanged, found.carrying_count) == ((), (), 1, 2)
        assert inspect.get("mirror", "users", ["b"], settings).rows == ()
        (row,) = inspect.top("mirror", "users", settings=settings).rows
        assert (row.key, row.value, row.prev) == (
            {"id": "a"},
            {"name": "Ann", "at": 4},
            {"name": "ann", "at": 1},
        )
        (described,) = inspect.states("mirror", settings)
        assert (described.value, described.rows) == ("name string, at bigint", 1)
        replayed = inspect.replay(made, 1, settings, last=3)
        assert [table.same for batch in replayed.batches for table in batch.tables] == [True] * 3
        why = inspect.why(made, "users", ["a"], settings)
        assert why.is_complete
        assert [part.offset for part in why.parts] == [3, 2]  # of one batch
        assert inspect.why(made, "users", ["b"], settings).value is None
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        assert connection.execute("SELECT id, name FROM users").fetchall() == [("a", "Ann")]
