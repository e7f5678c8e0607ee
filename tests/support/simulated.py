"""Topologies for the simulation: a correct one, and wrong ones that it must find."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, ClassVar

from txstream import (
    BasicBolt,
    BatchBolt,
    Committer,
    Count,
    Decode,
    KafkaSource,
    NonTransactionalSpout,
    OpaqueSpout,
    SqlState,
    SqlStateBolt,
    Sum,
    Topology,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)
from txstream.spouts.memory import MemorySpout

LINES = {"p1": ["a b a", "c", "a", "b c"], "p2": ["c", "b a", "a c a"], "p3": ["d", "d a"]}
SPOUTS = {
    "opaque": OpaqueSpout,
    "transactional": TransactionalSpout,
    "non-transactional": NonTransactionalSpout,
}

_seen: set[str] = set()


class Split(BasicBolt):
    output = "word string"

    def execute(self, tup: Any, collector: Any) -> None:
        for word in tup["line"].split():
            collector.emit((word,))


class OnlyNewWords(Split):
    """Wrong: what it emits depends on what this process has seen before."""

    def execute(self, tup: Any, collector: Any) -> None:
        for word in tup["line"].split():
            if word not in _seen:
                _seen.add(word)
                collector.emit((word,))


class DropsAll(Split):
    """Emits nothing."""

    def execute(self, tup: Any, collector: Any) -> None: ...


class Guesses(Split):
    """Wrong: it emits something else each time."""

    def execute(self, tup: Any, collector: Any) -> None:
        for _ in range(random.randint(1, 3)):
            collector.emit((tup["line"],))


class Adds(BatchBolt, Committer):
    """A committer that counts in a state of its own."""

    output = "word string"

    def __init__(self) -> None:
        self.states = {"kept": SqlState("kept", key="word string", value="n bigint")}

    def execute(self, tup: Any) -> None:
        self.context.state("kept").update(tup["word"], lambda n: (n or 0) + 1)


class AddsOutside(Adds):
    """Wrong: it counts outside the transaction, so that what an earlier attempt has counted stays."""

    counts: ClassVar[dict[str, int]] = {}

    def execute(self, tup: Any) -> None:
        self.counts[tup["word"]] = self.counts.get(tup["word"], 0) + 1
        self.context.state("kept").put(tup["word"], self.counts[tup["word"]])


class CountsFirstAttempts(Adds):
    """Wrong: it assumes that a txid's second attempt has been counted already. With one database, whose fence
    takes no number, the first attempt of a run has the number of its txid."""

    def execute(self, tup: Any) -> None:
        if self.context.attempt.attempt % (1 << 32) == self.context.attempt.txid:
            super().execute(tup)


def counts(
    split: Any = Split,
    committer: Any = None,
    semantics: str = "opaque",
    lines: Any = LINES,
    by_line: bool = True,
) -> Topology:
    """A word count in one database, beside a count of lines in another."""
    builder = TransactionalTopologyBuilder(
        "counts", "lines", SPOUTS[semantics](MemorySpout("line string", lines))
    )
    builder.set_bolt("split", split(), 2).shuffle_grouping("lines")
    words = SqlState("words", key="word string", value="n bigint")
    builder.set_bolt("words", SqlStateBolt(words, n=Count())).fields_grouping("split", "word")
    if by_line:
        lines_of = SqlState("by_line", key="line string", value="n bigint", url="sqlite:///elsewhere.db")
        builder.set_bolt("by_line", SqlStateBolt(lines_of, n=Count())).fields_grouping("lines", "line")
    if committer is not None:
        builder.set_bolt("adds", committer(), 2).fields_grouping("split", "word")
    return builder.build()


def counts_by(semantics: str = "opaque", wrong: bool = False) -> Topology:
    """The word count for the command line."""
    return counts(OnlyNewWords if wrong else Split, semantics=semantics)


def forgetful() -> Topology:
    """For the command line: a topology that does not count what is replayed."""
    return counts(committer=CountsFirstAttempts, by_line=False)


def summed(*, key: str = "k string") -> Topology:
    """Sums of rows that tests provide; the source has none."""
    builder = TransactionalTopologyBuilder("sums", "rows", OpaqueSpout(MemorySpout("k string, x bigint")))
    state = SqlState("sums", key=key, value="x bigint")
    builder.set_bolt("sums", SqlStateBolt(state, x=Sum("x"))).fields_grouping("rows", "k")
    return builder.build()


class TopWord(BatchBolt):
    output = "word string"

    def prepare(self, context: Any, collector: Any, batch_id: Any) -> None:
        super().prepare(context, collector, batch_id)
        self.words: Counter[str] = Counter()

    def execute(self, tup: Any) -> None:
        self.words.update(tup["line"].split())

    def finish_batch(self) -> None:
        if self.words:
            self.collector.emit((min(self.words, key=lambda word: (-self.words[word], word)),))


def tops(spout: Any = OpaqueSpout, tasks: int = 1) -> Topology:
    builder = TransactionalTopologyBuilder("tops", "lines", spout(MemorySpout("line string", LINES)))
    builder.set_bolt("top", TopWord(), tasks).shuffle_grouping("lines")
    state = SqlState("tops", key="word string", value="n bigint")
    builder.set_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("top", "word")
    return builder.build()


def orders(is_kafka: bool = True) -> Topology:
    """Sums by time: what a topic of JSON holds, or the same columns in memory."""
    schema = "user string, at timestamp, price decimal(10,2)"
    source: Any = MemorySpout(schema, {})
    if is_kafka:
        schema = schema.replace("user string", "user struct<id:string>")
        columns = ("topic", "offset")
        source = KafkaSource("orders", decode=Decode("json", schema), kafka_columns=columns)
    builder = TransactionalTopologyBuilder("orders", "orders", OpaqueSpout(source))
    state = SqlState("orders", "at timestamp", "price decimal(20,2)")
    builder.set_committer_bolt("store", SqlStateBolt(state, price=Sum("price"))).fields_grouping(
        "orders", "at"
    )
    return builder.build()
