"""What `build()` accepts, and every refusal with its sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from support.inmemory import MemoryLog, MemorySource
from support.lists import each

from txstream.api.bolts import (
    BasicBolt,
    BatchBolt,
    Committer,
    OutputCollector,
    OutputFieldsDeclarer,
    TransactionalBolt,
)
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.groupings import GroupingKind
from txstream.api.reducers import Count
from txstream.api.schema import format_schema
from txstream.api.spouts import NonTransactionalSpout, OpaqueSpout, SourceSpout, TransactionalSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.bolts.aggregate import CountBolt
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import SchemaError, TopologyError
from txstream.core.semantics import Semantics

SOURCE = MemorySource(MemoryLog({}))


class Split(BasicBolt):
    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        for word in tup["value"].split():
            collector.emit((word,))


class Sort(BasicBolt):
    """Two streams, one of them with a list."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("word string, letters array<string>")
        declarer.declare("reason string", stream="errors")

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit((tup[0], []))


class Own(BatchBolt):
    output = "word string, n bigint"

    def execute(self, tup: Tuple) -> None:
        pass


class OwnCommitter(TransactionalBolt, Committer):
    def execute(self, tup: Tuple) -> None:
        pass


def words(table: str = "words", **options: Any) -> SqlState:
    return SqlState(table, key="word string", value="n bigint", **options)


def builder(
    spout: Any = None, topology_id: str = "word-count", **options: Any
) -> TransactionalTopologyBuilder:
    return TransactionalTopologyBuilder(topology_id, "lines", spout or OpaqueSpout(SOURCE), **options)


def complete(spout: Any = None, state: SqlState | None = None, tasks: int = 2) -> Topology:
    """Return the word count, built."""
    declared = builder(spout, parallelism=2)
    declared.set_bolt("split", Split(), 4).shuffle_grouping("lines")
    declared.set_bolt("count", CountBolt("word"), 2).fields_grouping("split", "word")
    store = declared.set_committer_bolt("store", SqlStateBolt(state or words()), tasks)
    store.fields_grouping("count", "word")
    return declared.build()


def test_a_chain_is_ordered_from_the_spout_down_whatever_the_order_of_declaring() -> None:
    declared = builder(parallelism=2)
    declared.set_committer_bolt("store", SqlStateBolt(words())).fields_grouping("count", "word")
    declared.set_bolt("count", CountBolt("word"), 2).fields_grouping("split", "word")
    declared.set_bolt("split", Split(), 4).local_or_shuffle_grouping("lines").set_num_tasks(6)
    topology = declared.build()
    assert [component.id for component in topology.components] == ["lines", "split", "count", "store"]
    split, count, store = topology.bolts
    assert (split.parallelism, split.tasks, count.tasks) == (4, 6, 2)
    assert format_schema(count.streams["default"]) == "word string, n bigint"
    assert [grouping.kind for grouping in split.inputs] == [GroupingKind.LOCAL_OR_SHUFFLE]
    assert store.is_committer
    assert store.streams == {}
    assert [(bolt.state.table, semantics) for bolt, semantics in topology.states] == [("words", "opaque")]


def test_a_topology_under_another_id_is_otherwise_the_same() -> None:
    topology = complete()
    other = topology.with_id("other")
    assert (other.id, topology.id) == ("other", "word-count")
    assert other.components is topology.components
    with pytest.raises(TopologyError, match="'a/b' cannot be a topology id: it has a slash in it"):
        topology.with_id("a/b")


def test_one_bolt_instance_may_serve_two_topologies() -> None:
    count = CountBolt("word")
    for name in ("one", "two"):
        declared = builder(topology_id=name)
        declared.set_bolt("split", Split()).shuffle_grouping("lines")
        declared.set_bolt("count", count).fields_grouping("split", "word")
        declared.set_bolt("store", SqlStateBolt(words())).fields_grouping("count", "word")
        declared.build()
    assert not hasattr(count, "fold"), "building changed the user's own instance"


def test_set_bolt_makes_a_state_bolt_a_committer_without_further_ado() -> None:
    declared = builder()
    declared.set_bolt("split", Split()).shuffle_grouping("lines")
    declared.set_bolt("store", SqlStateBolt(words(), n=Count())).fields_grouping("split", "word")
    assert declared.build().bolts[-1].is_committer


# --- semantics ---------------------------------------------------------------------------------------


@each(
    ("spout", "state", "chosen"),
    [
        (TransactionalSpout, None, Semantics.TRANSACTIONAL),
        (TransactionalSpout, Semantics.OPAQUE, Semantics.OPAQUE),
        (OpaqueSpout, None, Semantics.OPAQUE),
        (OpaqueSpout, "opaque", Semantics.OPAQUE),
        (NonTransactionalSpout, None, Semantics.NON_TRANSACTIONAL),
    ],
)
def test_legal_pairs_of_spout_and_state(spout: type[SourceSpout[Any]], state: Any, chosen: Semantics) -> None:
    topology = complete(spout(SOURCE), words(semantics=state))
    assert topology.semantics is spout.semantics
    assert topology.states[0][1] is chosen


@each(
    ("spout", "state", "message"),
    [
        (
            OpaqueSpout,
            Semantics.TRANSACTIONAL,
            "table 'words': the spout is opaque and cannot fill transactional state, because its replays may "
            "hold other tuples, which a row with only a txid cannot undo; use semantics 'opaque'",
        ),
        (OpaqueSpout, Semantics.NON_TRANSACTIONAL, "because a replay would be counted twice"),
        (
            TransactionalSpout,
            Semantics.NON_TRANSACTIONAL,
            "because a replay would be counted twice; use semantics 'transactional' or 'opaque'",
        ),
        (
            NonTransactionalSpout,
            Semantics.OPAQUE,
            "because its batches have no fixed order to compare with; use semantics 'non-transactional'",
        ),
        (NonTransactionalSpout, Semantics.TRANSACTIONAL, "cannot fill transactional state"),
    ],
)
def test_illegal_pairs_are_refused(spout: type[SourceSpout[Any]], state: Semantics, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        complete(spout(SOURCE), words(semantics=state))


# --- refusals ----------------------------------------------------------------------------------------


def unknown_component(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("split", Split()).shuffle_grouping("line")


def no_input(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("split", Split())


def unknown_field(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("split", Split()).shuffle_grouping("lines")
    b.set_bolt("count", CountBolt("word")).fields_grouping("split", "wrod")


def needed_field(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("split", Split()).shuffle_grouping("lines")
    b.set_bolt("count", CountBolt("wrod")).fields_grouping("split", "word")


def unknown_stream(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("split", Split()).shuffle_grouping("lines", stream="errors")


def stream_of_a_committer(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("split", Split()).shuffle_grouping("lines")
    b.set_bolt("store", SqlStateBolt(words(), n=Count())).fields_grouping("split", "word")
    b.set_bolt("after", Split()).shuffle_grouping("store")


def nested_field(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("sort", Sort()).shuffle_grouping("lines")
    b.set_bolt("count", CountBolt("word")).fields_grouping("sort", "letters")


def no_fields(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("split", Split()).fields_grouping("lines")


def cycle(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("one", Split()).shuffle_grouping("two")
    b.set_bolt("two", Split()).shuffle_grouping("one")


def itself(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("one", Split()).shuffle_grouping("one")


def stream_twice_over(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("split", Split()).shuffle_grouping("lines").global_grouping("lines")


def same_id(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("split", Split()).shuffle_grouping("lines")
    b.set_bolt("split", Split()).shuffle_grouping("split")


def id_of_the_spout(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("lines", Split())


def a_class(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("split", Split)  # type: ignore[arg-type]


def no_bolt(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("split", "split")  # type: ignore[arg-type]


def basic_committer(b: TransactionalTopologyBuilder) -> None:
    b.set_committer_bolt("store", Split()).shuffle_grouping("lines")


def no_committer(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("split", Split()).shuffle_grouping("lines")


def no_parallelism(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("split", Split(), 0)


def half_parallelism(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("split", Split(), 1.5)  # type: ignore[arg-type]


def no_tasks(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("split", Split()).set_num_tasks(0)


def few_tasks(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("split", Split(), 4).shuffle_grouping("lines").set_num_tasks(3)


def not_by_key(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("own", Own()).shuffle_grouping("lines")
    b.set_bolt("store", SqlStateBolt(words()), 2).fields_grouping("own", "n")


def shuffled_state(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("own", Own()).shuffle_grouping("lines")
    b.set_bolt("store", SqlStateBolt(words())).shuffle_grouping("own").set_num_tasks(2)


def key_type(b: TransactionalTopologyBuilder) -> None:
    b.set_bolt("own", Own()).shuffle_grouping("lines")
    state = SqlState("words", key="n string", value="m bigint")
    b.set_bolt("store", SqlStateBolt(state, m=Count())).fields_grouping("own", "n")


def stream_twice(b: TransactionalTopologyBuilder) -> None:
    class Twice(Split):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            declarer.declare("word string")
            declarer.declare("n bigint")

    b.set_bolt("split", Twice()).shuffle_grouping("lines")


def unknown_type(b: TransactionalTopologyBuilder) -> None:
    class Typo(Split):
        output = "word strin"

    b.set_bolt("split", Typo()).shuffle_grouping("lines")


@each(
    ("declare", "message"),
    [
        (
            unknown_component,
            r"component 'split' subscribes to 'line', which does not exist; there are lines, split",
        ),
        (
            no_input,
            r"component 'split' has no input; call a grouping on it, for example "
            r"\.shuffle_grouping\('lines'\)",
        ),
        (
            unknown_field,
            r"component 'count' groups by field 'wrod', but 'split' emits only word string",
        ),
        (needed_field, r"component 'count' needs a field 'wrod', but its input has only word string"),
        (
            unknown_stream,
            r"component 'split' subscribes to stream 'errors' of 'lines', which declares 'default'",
        ),
        (
            stream_of_a_committer,
            r"component 'after' subscribes to stream 'default' of 'store', which declares no output",
        ),
        (
            nested_field,
            r"component 'count' groups by field 'letters', which is array<string>; group by fields with a "
            r"single value",
        ),
        (no_fields, r"component 'split': a fields grouping needs at least one field"),
        (cycle, r"a cycle: 'one' -> 'two' -> 'one'; a batch would never be finished"),
        (itself, r"a cycle: 'one' -> 'one'; a batch would never be finished"),
        (
            stream_twice_over,
            r"component 'split' subscribes to the same stream twice, by shuffle\(lines\) and by "
            r"global\(lines\)",
        ),
        (same_id, r"two components are called 'split'; every component needs its own id"),
        (id_of_the_spout, r"two components are called 'lines'"),
        (
            a_class,
            r"component 'split': <class .*Split'> is not a BasicBolt, .*\(pass an instance, not",
        ),
        (no_bolt, r"component 'split': 'split' is not a BasicBolt, BatchBolt, RichBolt or DataFrameBolt$"),
        (
            basic_committer,
            r"component 'store': Split cannot be a committer, because it has no finish_batch to run in the "
            r"commit phase; derive it from BatchBolt",
        ),
        (
            no_committer,
            r"topology 'word-count' has no committer, so its results would be stored nowhere; add a "
            r"SqlStateBolt with set_committer_bolt",
        ),
        (no_parallelism, r"the parallelism of 'split' is 0; it must be a whole number of at least 1"),
        (half_parallelism, r"the parallelism of 'split' is 1\.5; it must be a whole number"),
        (no_tasks, r"the number of tasks of 'split' is 0; it must be a whole number of at least 1"),
        (few_tasks, r"component 'split' has 3 tasks for 4 slots; tasks must be at least the parallelism"),
        (
            not_by_key,
            r"component 'store': group its input by the key of table 'words' \(word\) or a part of it, not "
            r"by fields\(own, n\); two tasks with the same key would lose updates",
        ),
        (shuffled_state, r"component 'store': group its input by the key .* not by shuffle\(own\)"),
        (
            key_type,
            r"component 'store': key column 'n' of table 'words' is string, the field is bigint",
        ),
        (stream_twice, r"component 'split' declares stream 'default' twice"),
        (unknown_type, r"unknown type 'strin' in the type declaration 'word strin'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_build_refuses(declare: Callable[[TransactionalTopologyBuilder], None], message: str) -> None:
    declared = builder()

    def declare_and_build() -> None:
        declare(declared)
        declared.build()

    with pytest.raises(TopologyError, match=message):
        declare_and_build()


def test_the_key_may_be_grouped_by_a_part_of_it_or_by_nothing_when_there_is_one_task() -> None:
    state = SqlState("words", key="word string, n bigint", value="m bigint")

    def built(group: Callable[[Any], Any]) -> None:
        declared = builder()
        declared.set_bolt("own", Own()).shuffle_grouping("lines")
        group(declared.set_bolt("store", SqlStateBolt(state, m=Count())))
        declared.build()

    built(lambda store: store.fields_grouping("own", "n").set_num_tasks(3))
    built(lambda store: store.fields_grouping("own", "n", "word").set_num_tasks(3))
    built(lambda store: store.global_grouping("own").set_num_tasks(3))
    built(lambda store: store.shuffle_grouping("own"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topology_id": ""}, "'' cannot be a topology id: it is empty"),
        ({"topology_id": "a/b"}, "'a/b' cannot be a topology id: it has a slash in it"),
        ({"topology_id": "-x"}, "'-x' cannot be a topology id: commands would take it for an option"),
        ({"topology_id": " x"}, "it begins or ends with a blank"),
        ({"topology_id": ".."}, "ZooKeeper reserves it for relative paths"),
        ({"topology_id": "x" * 101}, "it has 101 characters"),
        ({"topology_id": "a\nb"}, "it has the unprintable character"),
        ({"topology_id": None}, "None cannot be a topology id: it is of type NoneType, not str"),
        ({"max_spout_pending": 0}, "max_spout_pending is 0; it must be a whole number of at least 1"),
        ({"max_attempts": True}, "max_attempts is True; it must be a whole number of at least 1"),
        ({"message_timeout_seconds": 0}, "message_timeout_seconds is 0; it must be a number above 0"),
        ({"message_timeout_seconds": "30"}, "message_timeout_seconds is '30'; it must be a number above 0"),
        ({"parallelism": 0}, "the parallelism of 'lines' is 0"),
        (
            {"spout": SOURCE},
            r"component 'lines': put a semantics on the source, for example OpaqueSpout\(Mem",
        ),
    ],
)
def test_what_the_builder_itself_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        builder(**options)


@each(
    ("make", "message"),
    [
        (lambda: OpaqueSpout("lines"), "OpaqueSpout takes a partitioned source such as Kaf.* not str"),  # type: ignore[arg-type]
        (lambda: OpaqueSpout(SOURCE, max_batch_records=0), "max_batch_records is 0; it must be at least 1"),
        (lambda: SqlState("", "a int", "b int"), "a state table needs a name, not ''"),
        (lambda: SqlState("txstream_x", "a int", "b int"), "names that begin with txstream_ are the frame"),
        (lambda: SqlState("t", "a int", "A int"), "value column 'A' clashes with key column 'a'"),
        (lambda: SqlState("a\0b", "a int", "b int"), r"table 'a\\x00b' has the character NUL in its name"),
        (lambda: SqlState("t\ud800", "a int", "b int"), r"table 't\\ud800' .* half of a character"),
        (lambda: SqlState("t", pa.schema({"": pa.int32()}), "b int"), "key column '' has an empty name"),
        (lambda: SqlState("t", "a int", "`b\0` int"), r"value column 'b\\x00' has the character NUL"),
        (
            lambda: SqlState("t", "a int", "txid int"),
            "value column 'txid' clashes with the framework's column",
        ),
        (lambda: SqlState("t", "prev_n int", "n int"), "key column 'prev_n' clashes .* beside value 'n'"),
    ],
)
def test_what_spouts_and_states_refuse(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        make()


def test_a_schema_that_cannot_be_read_is_told_where_the_state_is_declared() -> None:
    with pytest.raises(SchemaError, match="unknown type 'strng'"):
        SqlState("words", key="word strng", value="n bigint")
    with pytest.raises(SchemaError, match=r"field name '`\\ud800`' .* half of a character"):
        SqlState("words", key="`\ud800` string", value="n bigint")


class Both(SqlStateBolt):
    """A state that passes its input on: the only way to have two states in a chain."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        super().declare_output_fields(declarer)
        declarer.declare("word string, n bigint")


@each(
    ("states", "refused"),
    [
        ([words(), words()], True),
        ([words("Words"), words("words")], True),
        ([words(url="sqlite:///a"), words(url="sqlite:///b")], False),
        ([words("one"), words("two")], False),
    ],
    ids=["same", "same but for case", "two databases", "two tables"],
)
def test_two_bolts_on_one_table_are_refused(states: Sequence[SqlState], refused: bool) -> None:
    declared = builder()
    declared.set_bolt("own", Own()).shuffle_grouping("lines")
    declared.set_bolt("first", Both(states[0])).fields_grouping("own", "word")
    declared.set_bolt("second", SqlStateBolt(states[1])).fields_grouping("first", "word")
    if refused:
        with pytest.raises(
            TopologyError, match=r"components 'first' and 'second' both write table '(?i:words)'"
        ):
            declared.build()
    else:
        assert len(declared.build().states) == 2
