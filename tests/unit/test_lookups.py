"""Streams joined with a table of their topology. What a tuple must get is told by a loop over the records,
batch by batch, which knows nothing of attempts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from support.lists import each

from txstream import (
    Count,
    DeadLetters,
    LookupBolt,
    Max,
    MemorySpout,
    OpaqueSpout,
    PartitionedSpout,
    SqlAppendBolt,
    SqlState,
    SqlStateBolt,
    SqlTable,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    Tumbling,
    WindowBolt,
    WindowState,
    bolt,
    inspect,
)
from txstream.core.errors import TopologyError
from txstream.core.fault_points import Point
from txstream.core.semantics import Semantics
from txstream.settings import Settings
from txstream.state import StateDatabase
from txstream.testing import TopologyTest
from txstream.zookeeper import Kind

SPOUTS = {"opaque": OpaqueSpout, "transactional": TransactionalSpout}
FIELDS = "at bigint, kind string, id string, name string"
BATCH = 4

Record = tuple[int, str, str | None, str | None]


@bolt(output={"users": "id string, name string, kind string, at bigint", "orders": "at bigint, user string"})
def split(tup: Any, collector: Any) -> None:
    at, kind, key, name = tup.values
    if kind == "order":
        collector.emit((at, key), stream="orders")
    else:
        collector.emit((key, name, kind, at), stream="users")


def users_table(name: str = "users", **options: Any) -> SqlTable:
    return SqlTable(name, "name string", key="id string", on_conflict="replace", **options)


def joining(
    source: PartitionedSpout[Any],
    spout: Any = OpaqueSpout,
    table: SqlTable | None = None,
    *,
    grouping: str = "fields",
    tasks: int = 2,
    order_by: str = "at",
    missing: Any = "null",
    on: Any = "user",
    columns: Any = None,
    size: int = BATCH,
    **options: Any,
) -> Any:
    builder = TransactionalTopologyBuilder(
        "lookups", "log", spout(source, max_batch_records=BATCH), **options
    )
    builder.set_bolt("split", split).local_or_shuffle_grouping("log")
    users = SqlAppendBolt(table or users_table(removed_by="kind = 'gone'"), order_by=order_by)
    builder.set_bolt("fill", users, tasks).shuffle_grouping("split", stream="users")
    named = builder.set_bolt("named", LookupBolt(users.state, on=on, columns=columns, missing=missing), tasks)
    if grouping == "fields":
        named.fields_grouping("split", "user", stream="orders")
    else:
        getattr(named, f"{grouping}_grouping")("split", stream="orders")
    joined = SqlTable("joined", "user string, name string", key="at bigint")
    builder.set_bolt("store", SqlAppendBolt(joined)).local_or_shuffle_grouping("named")
    return builder.build()


def expected(records: list[Record], batch: int = BATCH) -> dict[int, tuple[str | None, str | None]]:
    """Each order with the user's name: all of the batches before, and of its own."""
    names: dict[str | None, str | None] = {}
    joined = {}
    for start in range(0, len(records), batch):
        some = records[start : start + batch]
        for _, kind, key, name in some:
            if kind == "user":
                names[key] = name
            elif kind == "gone":
                names.pop(key, None)
        joined.update({at: (key, names.get(key)) for at, kind, key, _ in some if kind == "order"})
    return joined


def some_records(seed: int, count: int = 60) -> list[Record]:
    chance = random.Random(seed)
    kinds = chance.choices(["user", "gone", "order"], [3, 1, 4], k=count)
    return [
        (at, kind, chance.choice("abcde"), f"n{at}" if kind == "user" else None)
        for at, kind in enumerate(kinds)
    ]


@contextmanager
def running(
    records: list[Any], *args: Any, width: int | None = None, **options: Any
) -> Iterator[TopologyTest]:
    with (
        MemorySpout(FIELDS, {"p": records}) as source,
        TopologyTest(joining(source, *args, **options), width=width) as test,
    ):
        yield test


@pytest.mark.parametrize(
    ("commit", "keeps"),
    [
        ("auto", False),
        ("executors", True),
        pytest.param("auto", True, marks=pytest.mark.soak),
        pytest.param("executors", False, marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("name", SPOUTS)
def test_a_tuple_sees_the_batches_before_and_its_own(name: str, commit: Any, keeps: bool) -> None:
    for seed, (grouping, width) in enumerate(
        [("fields", 1), ("fields", 2), ("shuffle", 2), ("local_or_shuffle", 2), ("global", 1)]
    ):
        records = some_records(seed)
        table = users_table(removed_by="kind = 'gone'", index_txid=keeps)
        options = {"grouping": grouping, "commit": commit, "table": table}
        with running(records, SPOUTS[name], width=width, **options) as test:
            test.run()
            assert test.table("joined") == expected(records), (grouping, width)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("name", SPOUTS)
@pytest.mark.parametrize("at", [Point.BEFORE_COMMIT, Point.INSIDE_COMMIT, Point.AFTER_COMMIT])
def test_a_replay_joins_what_was_joined(name: str, at: Point, keeps: bool) -> None:
    records = some_records(7)
    table = users_table(removed_by="kind = 'gone'", index_txid=keeps)
    with running(records, SPOUTS[name], table, width=2, commit="executors") as test:
        for txid in (2, 5, 8):
            test.crash(at=at, txid=txid)
            test.restart()
        test.run()
        assert test.table("joined") == expected(records)


@pytest.mark.parametrize("keeps", [False, True])
def test_what_an_undone_attempt_has_written_is_not_seen(keeps: bool) -> None:
    """The replay has no record of partition q, whose rows the executors of the first attempt have written."""
    before = [(0, "user", "a", "ann"), (1, "user", "b", "bob"), (2, "user", "c", "cid")]
    orders = [(at, "order", key, None) for at, key in enumerate("abcd", 10)]
    table = users_table(removed_by="kind = 'gone'", index_txid=keeps)
    changes = [(20, "user", "a", "Ann"), (21, "gone", "b", None), (22, "user", "d", "dan")]
    with (
        MemorySpout(FIELDS, {"p": before}) as source,
        TopologyTest(joining(source, table=table, commit="executors", size=100)) as test,
    ):
        test.commit(1)
        source.append("p", *orders[:3])
        source.append("q", *changes)
        test.crash(at=Point.AFTER_WRITE, txid=2)
        assert "Ann" in [row["name"] for row in test.rows("users")]
        source.hide("q")
        test.restart()
        test.commit(2)
        assert test.table("joined") == {10: ("a", "ann"), 11: ("b", "bob"), 12: ("c", "cid")}
        source.show("q")
        test.run()
        source.append("p", *((at + 10, "order", key, None) for at, key in enumerate("abcd", 10)))
        test.run()
        joined = {at: name for at, (_, name) in test.table("joined").items()}
        assert joined | {20: "Ann", 21: None, 22: "cid", 23: "dan"} == joined


def totals(source: MemorySpout, spout: Any, state: SqlState, lookup: LookupBolt, **options: Any) -> Any:
    builder = TransactionalTopologyBuilder("totals", "log", spout(source, max_batch_records=BATCH), **options)
    store = builder.set_bolt("totals", SqlStateBolt(state, n=Count(), most=Max("amount")), 2)
    store.fields_grouping("log", "shop", "day")
    builder.set_bolt("seen", lookup, 2).fields_grouping("log", *lookup.on)
    kept = SqlTable("kept", "shop string, total bigint, high bigint", key="at bigint")
    builder.set_bolt("store", SqlAppendBolt(kept)).local_or_shuffle_grouping("seen")
    return builder.build()


SALES = "at bigint, shop string, day int, amount bigint"


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("name", SPOUTS)
def test_a_stream_is_joined_with_what_is_added_up_of_it(name: str, keeps: bool) -> None:
    """The bolt and its table get one stream, and the table has a key of two columns."""
    chance = random.Random(1)
    sales = [(at, chance.choice("xy"), chance.choice([1, 2]), chance.randrange(100)) for at in range(40)]
    state = SqlState(
        "totals",
        key="shop string, day int",
        value="n bigint, most bigint",
        semantics=Semantics.OPAQUE,
        index_txid=keeps,
    )
    lookup = LookupBolt("totals", on=("shop", "day"), columns={"total": "n", "high": "most"})
    counts: dict[Any, list[int]] = {}
    wanted: dict[int, tuple[str, int, int]] = {}
    for start in range(0, len(sales), BATCH):
        for _, shop, day, amount in sales[start : start + BATCH]:
            counts.setdefault((shop, day), []).append(amount)
        for at, shop, day, _ in sales[start : start + BATCH]:
            wanted[at] = (shop, len(counts[shop, day]), max(counts[shop, day]))
    with (
        MemorySpout(SALES, {"p": sales}) as source,
        TopologyTest(totals(source, SPOUTS[name], state, lookup, commit="executors"), width=2) as test,
    ):
        for txid in (3, 6):
            test.crash(at=Point.AFTER_WRITE, txid=txid)
            test.restart()
        test.run()
        assert test.table("kept") == wanted


@each("keeps", [False, True])
def test_a_row_that_is_older_than_the_tables_changes_nothing(keeps: bool) -> None:
    """Nor does one that is older than a removal of which only the sequence is left."""
    table = SqlTable(
        "users",
        "name string, at bigint",
        key="id string",
        on_conflict="replace",
        removed_by="kind = 'gone'",
        sequence_by="at",
        index_txid=keeps,
    )
    told = (
        "user a 5 new, gone b 6 -, user c 7 cid, order a 100 -, user a 1 old, user b 2 old, order a 101 -, "
        "order b 102 -, order b 103 -, user b 3 old, gone c 8 -, order c 104 -, user b 9 bob, order b 105 -, "
        "order c 106 -, user c 4 old"
    )
    records = [
        (int(at), kind, key, name) for kind, key, at, name in (one.split() for one in told.split(", "))
    ]
    with (
        MemorySpout(FIELDS, {"p": records}) as source,
        TopologyTest(joining(source, table=table, columns="name")) as test,
    ):
        test.run()
        names = {at: name for at, (_, name) in test.table("joined").items()}
    assert names == {100: "new", 101: "new", 102: None, 103: None, 104: None, 105: "bob", 106: None}


@each("grouping", ["fields", "shuffle"])
def test_a_key_that_no_row_can_have_is_missing(grouping: str) -> None:
    keys = ["a", None, "a\0", "a", "b"]
    orders = [(at, "order", key, None) for at, key in enumerate(keys)]
    with MemorySpout(FIELDS, {"p": [(9, "user", "a", "ann"), *orders]}) as source:
        builder = TransactionalTopologyBuilder("lookups", "log", OpaqueSpout(source))
        builder.set_bolt("split", split).local_or_shuffle_grouping("log")
        users = builder.set_bolt("users", SqlAppendBolt(users_table(), order_by="at"))
        users.shuffle_grouping("split", stream="users")
        named = builder.set_bolt("named", LookupBolt("users", on="user"))
        if grouping == "fields":
            named.fields_grouping("split", "user", stream="orders")
        else:
            named.shuffle_grouping("split", stream="orders")
        with TopologyTest(builder) as test:
            test.commit(1)
            source.append("p", *orders)
            test.run()
            for txid in (1, 2):
                names = {at: name for at, _, name in test.emitted("named", txid=txid)}
                assert names == {0: "ann", 1: None, 2: None, 3: "ann", 4: None}


def test_a_missing_row_becomes_a_dead_letter_and_a_retry_finds_it(tmp_path: Path) -> None:
    records = [
        (0, "user", "a", "ann"),
        (1, "order", "a", None),
        (2, "order", "b", None),
        (3, "order", None, None),
    ]
    database = f"sqlite:///{tmp_path / 's.db'}"
    letters = DeadLetters(max_share=1.0)
    with (
        MemorySpout(FIELDS, {"p": records}) as source,
        TopologyTest(joining(source, missing="dead-letter", dead_letters=letters), database=database) as test,
    ):
        test.run()
        assert test.table("joined") == {1: ("a", "ann")}
        found = inspect.dead_letters("lookups", Settings(database=database)).select(
            ["offset", "component", "message"]
        )
        source.append("p", (4, "user", "b", "bob"))
        test.run()
        test._control.running.requests.ask(Kind.RETRY, {})
        source.append("p", (5, "order", "b", None))
        test.run()
        assert test.table("joined") == {1: ("a", "ann"), 2: ("b", "bob"), 5: ("b", "bob")}
    assert found.to_pylist() == [
        {"offset": 2, "component": "named", "message": "table 'users' has no row for user='b'"},
        {"offset": 3, "component": "named", "message": "table 'users' has no row for user=None"},
    ]


@each("removed_by", [None, "kind = 'gone'"])
def test_a_kept_row_is_read_again_once_it_has_changed(
    removed_by: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    read = StateDatabase.read

    def noted(self: Any, spec: Any, keys: Any, **options: Any) -> Any:
        asked.append(sorted(keys.column("id").to_pylist()))
        return read(self, spec, keys, **options)

    with monkeypatch.context() as patch:
        patch.setattr(StateDatabase, "read", noted)
        table = users_table(removed_by=removed_by, index_txid=True)
        with (
            MemorySpout(FIELDS, {"p": []}) as source,
            TopologyTest(joining(source, table=table, size=100, tasks=1)) as test,
        ):
            times = iter(range(100))

            def batch(*told: str) -> list[str]:
                asked.clear()
                for one in told:
                    kind, key, *name = one.split()
                    source.append("p", (next(times), kind, key, name[0] if name else None))
                test.run()
                return sorted(chain.from_iterable(asked))

            assert batch("user a ann", "user b bob", "order a", "order c") == ["a", "c"]
            assert batch("order a", "order b", "order c") == ["a", "b"]  # nobody has changed c
            assert batch("order a", "order b", "order c") == []
            assert batch("user a Ann", "order b") == []
            assert batch("order a", "order b") == ["a"]
            assert batch("user c cid", "order c") == []
            assert batch("order c") == ["c"]
            assert batch("user b Bob") == []  # nothing is looked up
            assert batch("user d dan") == []
            # A removed row may have gone meanwhile, and left no trace.
            assert batch("order a", "order b") == (["b"] if removed_by is None else ["a", "b"])
            assert batch("order d", "order e", "order f") == ["d", "e", "f"]


def test_a_kept_row_that_an_undone_attempt_has_changed_is_read_again() -> None:
    """The change of the batch before is hidden behind that of the attempt, which carries its own txid."""
    table = users_table(index_txid=True)
    with (
        MemorySpout(FIELDS, {"p": [(0, "user", "a", "first")]}) as source,
        TopologyTest(joining(source, table=table, commit="executors", tasks=1)) as test,
    ):
        test.run()
        source.append("p", (1, "order", "a", None))
        test.run()  # "first" is kept
        source.append("p", (2, "user", "a", "second"))
        test.run()
        source.append("q", (3, "user", "a", "third"))
        test.fail(4, at=Point.AFTER_WRITE)
        assert [row["name"] for row in test.rows("users")] == ["third"]
        source.hide("q")
        source.append("p", (4, "order", "a", None))
        test.commit(4)
        assert test.table("joined") == {1: ("a", "first"), 4: ("a", "second")}


def refused(lookup: Any, spout: Any = OpaqueSpout, **options: Any) -> str:
    state = SqlState("totals", key="shop string, day int", value="n bigint, most bigint")
    with MemorySpout(SALES) as source, pytest.raises(TopologyError) as caught:
        totals(source, spout, state, lookup(), **options)
    return str(caught.value)


def test_what_is_refused() -> None:
    both = ("shop", "day")
    with pytest.raises(TopologyError, match=r"KafkaSource\(.*table_first='users'\)"):
        LookupBolt("users", on="user", table_first=True)

    def to(table: str = "totals", **options: Any) -> Any:
        return lambda: LookupBolt(table, **{"on": both, **options})

    names: dict[str, Any] = {"columns": {"total": "n", "high": "most"}}
    assert "reads the table of 'log', which is no bolt that fills a table; those are 'totals', 'store'" in (
        refused(to("log", **names))
    )
    assert "a cycle: 'seen' -> 'seen'; a batch would never be finished" in refused(to("store", **names))
    with MemorySpout(FIELDS) as source:
        with pytest.raises(TopologyError, match="on names user, at; the key is id string"):
            joining(source, on=("user", "at"))
        with pytest.raises(
            TopologyError, match="field 'at' must be string, as key column 'id'; it is bigint"
        ):
            joining(source, on="at")
        with pytest.raises(TopologyError, match=r"field 'id' must be string, .*; there is none"):
            joining(source, on="id", grouping="shuffle")
    assert "group it for the LookupBolt by the key of the table (shop, day)" in refused(
        to(on=("day", "shop"))
    )
    assert "there is no value column 'm'; it has n, most" in refused(to(columns="n, m"))
    assert "has a field 'day' already; give the column another name, as in columns={'totals_day': 'day'}" in (
        refused(to(columns={"day": "n"}))
    )
    assert "a row that is added up keeps what it was before a batch only with semantics='opaque'" in (
        refused(to(**names), spout=TransactionalSpout)
    )
    assert "they reach no database" in refused(to(**names), commit="driver")
    assert "missing='dead-letter' needs dead_letters=DeadLetters()" in (
        refused(to(**names, missing="dead-letter"))
    )
    assert "missing='wait' cannot be exact" in refused(to(missing="wait"))
    assert "missing is 'drop'; it must be 'null' or 'dead-letter'" in refused(to(missing="drop"))


def test_a_table_whose_rows_the_commit_changes_is_refused() -> None:
    window = Tumbling("1h", time="at")
    hours = WindowState("hours", key="page string", value="n bigint", window=window, late="amend")
    days = SqlState("days", key="page string, at timestamp", value="n bigint", keep="90d")
    for table in (WindowBolt(hours, n=Count()), SqlStateBolt(days, n=Count())):
        lookup = LookupBolt("counts", on=("page", "at"))
        lookup.table = table
        with pytest.raises(TopologyError, match="its rows are removed, or its windows closed, by the commit"):
            lookup.check_table(Semantics.OPAQUE, sets_aside=True)
