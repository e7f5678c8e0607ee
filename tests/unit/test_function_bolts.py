"""`@bolt`: plain functions as bolts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from support.bolts import compiled, words_state
from support.inmemory import MemoryLog, MemorySource, attempt
from support.lists import each

import txstream
from txstream.api.bolts import OutputCollector
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import OpaqueSpout
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.bolts.functions import FunctionBolt, bolt
from txstream.bolts.sql import SqlStateBolt
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import SchemaError, TopologyError, TxstreamError
from txstream.plugins.local.local_runner import InProcessRunner

LOG = MemoryLog({"a": ["the cat", "the dog"], "b": [""]})


def topology(function: Any, stream: str = "default") -> Topology:
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySource(LOG)))
    builder.set_bolt("function", function).shuffle_grouping("lines")
    store = builder.set_bolt("store", SqlStateBolt(words_state(), n=Count()))
    store.fields_grouping("function", "word", stream=stream)
    return builder.build()


def words(function: Any, stream: str = "default") -> dict[str, int]:
    runner = InProcessRunner(compiled(topology(function, stream)))
    counts: Counter[str] = Counter()
    for table in runner.run(attempt(1), BatchMetas(LOG.everything())).deltas["store"]:
        counts.update({row["word"]: row["n"] for row in table.to_pylist()})
    return dict(counts)


def error(function: Any) -> TxstreamError:
    with pytest.raises(TxstreamError) as caught:
        words(function)
    return caught.value


@bolt(output="word string")
def split(line: Tuple) -> Iterator[str]:
    """Words of a line."""
    yield from line["value"].split()


@bolt(output="word string")
def first(line: Tuple) -> tuple[str] | None:
    return (line["value"].split()[0],) if line["value"] else None


@bolt(output="word string")
def bare(line: Tuple) -> str:
    return str(line["value"])


@bolt(output="word string")
def listed(line: Tuple) -> list[tuple[str]]:
    return [(word,) for word in line["value"].split()]


@bolt(output="word string, length int")
def two_fields(line: Tuple) -> Iterator[tuple[str, int]]:
    for word in line["value"].split():
        yield word, len(word)


@bolt(output={"default": "word string", "cats": "word string, n int"})
def with_collector(line: Tuple, collector: OutputCollector) -> None:
    for word in line["value"].split():
        if word == "cat":
            collector.emit((word, 1), stream="cats")
        else:
            collector.emit((word,))


ALL = {"the": 2, "cat": 1, "dog": 1}


@each(
    ("function", "expected"),
    [
        (split, ALL),
        (first, {"the": 2}),
        (bare, {"the cat": 1, "the dog": 1, "": 1}),
        (listed, ALL),
        (two_fields, ALL),
        (with_collector, {"the": 2, "dog": 1}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_function_yields_or_returns_rows_or_emits_them(function: FunctionBolt, expected: Any) -> None:
    assert words(function) == expected


def test_a_function_with_a_collector_emits_to_several_streams() -> None:
    assert words(with_collector, "cats") == {"cat": 1}


def test_a_function_made_inside_another_one_is_shipped_with_what_it_uses() -> None:
    suffix = "!"

    @txstream.bolt(output="word string")
    def shout(line: Tuple) -> str:
        return str(line["value"]) + suffix

    assert words(shout) == {"the cat!": 1, "the dog!": 1, "!": 1}


def test_the_function_can_still_be_called_and_keeps_its_name() -> None:
    assert list(split({"value": "a b"})) == ["a", "b"]
    assert (split.__name__, split.__doc__, repr(split)) == ("split", "Words of a line.", "bolt(split)")
    (shown,) = [line for line in topology(split).describe().splitlines() if line.startswith("function ")]
    assert shown.split()[1] == "split"


@bolt(output="word string, length int")
def wrong_row(line: Tuple) -> str:
    return str(line["value"])


@bolt(output="word string, length int")
def short_row(line: Tuple) -> tuple[str]:
    return (line["value"],)


@bolt(output="word string, length int")
def wrong_type(line: Tuple) -> tuple[str, str]:
    return line["value"], "seven"


@bolt(output="word string")
def raising(line: Tuple) -> Iterator[str]:
    yield "fine"
    raise ValueError("no such word")


@each(
    ("function", "message"),
    [
        (wrong_row, "bolt 'wrong_row' returned 'the cat' (str); return a tuple for one row"),
        (
            short_row,
            "component 'function' emitted ('the cat',) to stream 'default', which takes a tuple of 2",
        ),
        (wrong_type, "component 'function' emitted 'seven' (str) in field 'length' of stream 'default'"),
        (raising, "component 'function', task 0: ValueError: no such word (in test_function_bolts.py, line"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_function_emits_is_checked(function: FunctionBolt, message: str) -> None:
    found = error(function)
    assert message in str(found)
    assert "functions.py" not in "".join(getattr(found, "__notes__", [])), "the traceback begins in the bolt"


def no_parameters() -> None: ...
def three(a: Any, b: Any, c: Any) -> None: ...
def only_named(a: Any, *, collector: Any) -> None: ...


@each("function", [no_parameters, three, only_named])
def test_a_function_must_take_a_tuple_or_a_tuple_and_a_collector(function: Any) -> None:
    with pytest.raises(TopologyError, match=f"bolt '{function.__name__}' must take a tuple, or a tuple"):
        bolt(output="word string")(function)


async def coroutine(line: Any) -> None: ...
async def async_generator(line: Any, collector: Any) -> Any:
    yield line


@each("function", [coroutine, async_generator, partial(coroutine)])
def test_an_async_function_is_refused(function: Any) -> None:
    with pytest.raises(TopologyError, match=r"^bolt '\w+' is async, and nobody awaits it; write it with def"):
        bolt(output="word string")(function)


@each("given", [(), (first.function,), ("word string",)])
def test_bolt_without_its_output_is_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(TopologyError, match=r'^@bolt needs .*: write @bolt\(output="word string"\) above'):
        bolt(*given)


def test_what_is_no_function_or_no_schema_is_refused() -> None:
    with pytest.raises(TopologyError, match="@bolt makes bolts of functions, not of <class 'int'>"):
        bolt(output="word string")(int)
    with pytest.raises(TopologyError, match=r"bolt\(output=.*give the output's fields"):
        bolt(output=split)
    with pytest.raises(SchemaError, match="unknown type 'strin'"):
        bolt(output="word strin")(lambda line: line)
