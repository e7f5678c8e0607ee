"""How a topology describes itself: exact texts, and the same as JSON values."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.bolts import Passing, words_state
from support.inmemory import MemoryLog, MemorySource
from support.topologies import branching, declared, storm_example, word_count

from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import OpaqueSpout
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.core.wording import printable

CHAIN = """\
topology word-count (opaque)
2 batches at once, 30 s for an attempt, 5 attempts before a bug ends the run

component  class                      slots  tasks  phase
lines      OpaqueSpout(MemorySource)      2      2  process
    emits   default  value string
split      Split                          2      2  process
    reads   lines    local_or_shuffle
    emits   default  word string
count      CountBolt                      2      2  process
    reads   split    fields(word)
    emits   default  word string, n bigint
store      SqlStateBolt                   2      2  commit, committer
    reads   count    fields(word)
    stores  words    n bigint = Sum(n) for each word string (opaque table)"""

GRAPH = """\
topology branching (transactional)
1 batch at once, 2.5 s for an attempt, 1 attempt before a bug ends the run
settings: greeting, password

component  class                             slots  tasks  phase
lines      TransactionalSpout(MemorySource)      3      3  process
    emits   default    word string
sort       Sort                                  2      6  process
    reads   lines      shuffle
    emits   default    word string
    emits   long       word string, length int (direct)
shout      shout                                 1      1  process
    reads   sort       all
    emits   default    word string
filter     Filter                                1      1  process
    reads   sort       none
    emits   default    word string
lengths    Lengths                               2      2  process
    reads   shout      partial_key(word)
    reads   sort.long  direct
    reads   filter     global
    emits   default    word string, n bigint
longest    SqlStateBolt                          2      2  commit, committer
    reads   lengths    fields(word)
    stores  longest    n bigint = Count(), best bigint = Max(n) for each word string (opaque table)
total      SqlStateBolt                          1      1  commit, committer
    reads   lengths    global
    stores  total      n bigint = Sum(n) for each word string (transactional table)"""


def test_a_chain() -> None:
    assert word_count().describe() == CHAIN


def test_a_graph_with_several_inputs_streams_and_tables() -> None:
    assert branching().describe() == GRAPH


def test_what_is_below_a_committer_is_in_the_commit_phase_without_being_one() -> None:
    lines = storm_example().describe().splitlines()
    phases = {line.split()[0]: line.split(maxsplit=4)[4] for line in lines[4:] if not line.startswith(" ")}
    assert phases == {
        "lines": "process",
        "A": "process",
        "B": "commit, committer",
        "C": "commit",
        "D": "commit, committer",
    }


def test_long_lists_of_fields_are_wrapped_between_fields() -> None:
    fields = [f"a_field_with_number_{number} decimal(20,3)" for number in range(5)]
    described = chain_of(", ".join(fields)).describe().splitlines()
    start = described.index(next(line for line in described if fields[0] in line))
    assert described[start : start + 3] == [
        f"    emits   default  word string, {fields[0]},",
        f"                     {fields[1]}, {fields[2]},",
        f"                     {fields[3]}, {fields[4]}",
    ]


def chain_of(output: str, component: str = "store") -> Topology:
    source = OpaqueSpout(MemorySource(MemoryLog({}), f"word string, {output}"))
    builder = TransactionalTopologyBuilder("t", "lines", source)
    builder.set_bolt(component, SqlStateBolt(words_state(), n=Count())).global_grouping("lines")
    return builder.build()


def test_a_name_that_cannot_be_printed_is_escaped_and_takes_no_line_of_its_own() -> None:
    topology = chain_of("`a\nb` int", component="st\x1b[31m\nore")
    assert r"st\x1b[31m\nore" in topology.describe()
    assert r"`a\nb` int" in topology.describe()
    assert topology.to_document()["components"][1]["id"] == "st\x1b[31m\nore"
    assert printable("größe 🙂") == "größe 🙂"


def test_neither_form_tells_a_setting_or_a_databases_url() -> None:
    topology = branching()
    for text in (topology.describe(), json.dumps(topology.to_document())):
        assert "password" in text
        assert "secret" not in text
        assert "hello" not in text


def test_the_document_has_everything_as_json_values() -> None:
    document = branching().to_document()
    assert json.loads(json.dumps(document)) == document
    components = document.pop("components")
    assert document == {
        "topology": "branching",
        "semantics": "transactional",
        "max_spout_pending": 1,
        "message_timeout_seconds": 2.5,
        "max_attempts": 1,
        "workers": None,
        "settings": ["greeting", "password"],
    }
    by_id = {component["id"]: component for component in components}
    assert list(by_id) == ["lines", "sort", "shout", "filter", "lengths", "longest", "total"]
    assert {name: component["kind"] for name, component in by_id.items()} == {
        "lines": "spout",
        "sort": "bolt",
        "shout": "bolt",
        "filter": "dataframe",
        "lengths": "bolt",
        "longest": "state",
        "total": "state",
    }
    assert by_id["sort"] == {
        "id": "sort",
        "kind": "bolt",
        "class": "Sort",
        "slots": 2,
        "tasks": 6,
        "phase": "process",
        "committer": False,
        "inputs": [{"component": "lines", "stream": "default", "grouping": "shuffle", "fields": []}],
        "streams": [
            {"stream": "default", "direct": False, "fields": [{"name": "word", "type": "string"}]},
            {
                "stream": "long",
                "direct": True,
                "fields": [{"name": "word", "type": "string"}, {"name": "length", "type": "int"}],
            },
        ],
        "state": None,
        "states": [],
    }
    assert [given["grouping"] for given in by_id["lengths"]["inputs"]] == ["partial_key", "direct", "global"]
    assert by_id["lengths"]["inputs"][0]["fields"] == ["word"]
    assert (by_id["longest"]["phase"], by_id["longest"]["committer"]) == ("commit", True)
    assert by_id["longest"]["state"] == {
        "table": "longest",
        "semantics": "opaque",
        "key": [{"name": "word", "type": "string"}],
        "value": [
            {"name": "n", "type": "bigint", "reducer": "Count()"},
            {"name": "best", "type": "bigint", "reducer": "Max(n)"},
        ],
    }


def test_a_topology_under_another_id_is_described_under_that() -> None:
    other = word_count().with_id("other")
    assert other.describe() == CHAIN.replace("topology word-count", "topology other")
    assert other.to_document() == {**word_count().to_document(), "topology": "other"}


def test_one_of_each_is_in_the_singular() -> None:
    topology = replace(word_count(), max_spout_pending=1, max_attempts=1, message_timeout_seconds=60.0)
    assert topology.describe().splitlines()[1] == (
        "1 batch at once, 60 s for an attempt, 1 attempt before a bug ends the run"
    )


@pytest.mark.parametrize("slots", [1, 1000])
def test_numbers_are_aligned_right(slots: int) -> None:
    builder = declared("t", slots)
    builder.set_bolt("pass", Passing(), 7).shuffle_grouping("lines")
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Count())).global_grouping("pass")
    header, spout, _, bolt, *_ = builder.build().describe().splitlines()[3:]
    assert len(spout.split("  process")[0]) == len(bolt.split("  process")[0]) == header.index("  phase")
