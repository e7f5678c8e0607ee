"""`txstream compare` of a topology with dead letters, over real services. The oracle is a plain loop over
what was produced, and plain SQL."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa
from support.runs import Launcher
from support.texts import produce

from txstream.plugins.local.embedded import Services

_SUMS = """
from txstream import (
    BasicBolt, BatchBolt, Count, DeadLetters, Decode, KafkaSource, SqlState, SqlStateBolt, Sum,
    TransactionalTopologyBuilder,
)
from txstream.examples.word_count import SPOUTS


class Price(BasicBolt):
    output = "product string, cents bigint"

    def execute(self, tup, collector):
        cents = int(tup["price"])  # raises for what is no number
        collector.emit((tup["product"], cents))


class Checked(BatchBolt):
    output = "product string, cents bigint"

    def prepare(self, context, collector, batch_id):
        self.collector, self.rows = collector, []

    def execute(self, tup):
        self.rows.append((tup["product"], tup["cents"]))

    def finish_batch(self):
        if any(cents < 0 for _, cents in self.rows):
            raise ValueError("a negative price")
        for row in self.rows:
            self.collector.emit(row)


def topology(topic, semantics="opaque"):
    source = KafkaSource(
        topic,
        decode=Decode("json", "product string, price string"),
        max_records_per_partition=20,
    )
    asked = DeadLetters(max_share=0.5, topic="nobody-reads-it")
    builder = TransactionalTopologyBuilder("sums", "rows", SPOUTS[semantics](source), dead_letters=asked)
    # An effect beside the bolts that fail: a record that is set aside must leave none here either.
    seen = SqlState("seen", key="product string", value="n bigint")
    builder.set_bolt("seen", SqlStateBolt(seen, n=Count())).fields_grouping("rows", "product")
    builder.set_bolt("price", Price(), 2).shuffle_grouping("rows")
    builder.set_bolt("checked", Checked(), 2).fields_grouping("price", "product")
    state = SqlState("sums", key="product string", value="cents bigint, n bigint")
    store = builder.set_bolt("store", SqlStateBolt(state, cents=Sum("cents"), n=Count()))
    store.fields_grouping("checked", "product")
    return builder.build()
"""

RUNS = ("opaque", "transactional", "non-transactional")


def rows_and_truth() -> tuple[list[str], Counter[str], Counter[str], set[str]]:
    """Return the values in the order in which they are produced, round robin over two partitions, the sum and
    the number of the good ones by product, and the places of the bad ones."""
    lines: list[str] = []
    cents, numbers = Counter[str](), Counter[str]()
    bad = set[str]()
    for number in range(600):
        product = f"p{number % 7}"
        price = "none" if number % 97 == 5 else "-1" if number % 151 == 8 else str(number)
        line = json.dumps({"product": product, "price": price})
        if number % 101 == 11:
            line = line[:-4]  # no JSON
        lines.append(line)
        if line.endswith("}") and price not in ("none", "-1"):
            cents[product] += number
            numbers[product] += 1
        else:
            bad.add(f"{number % 2}@{number // 2}")
    return lines, cents, numbers, bad


def stored(database: str, run: str) -> tuple[dict[str, tuple[int, int]], dict[str, int], list[str]]:
    """Return what a run's two tables hold, and the places of its dead letters."""
    engine = sa.create_engine(database)
    with engine.connect() as connection:
        names = sa.inspect(connection).get_table_names()
        wanted = re.compile(f"compare_[0-9a-f]+_{run.replace('-', '_')}_sums")
        (sums,) = filter(wanted.fullmatch, names)
        found = connection.execute(sa.text(f"SELECT product, cents, n FROM {sums}"))
        seen = connection.execute(sa.text(f"SELECT product, n FROM {sums[: -len('sums')]}seen"))
        letters = connection.execute(
            sa.text(
                'SELECT "partition", "offset" FROM txstream_dead_letter '
                "WHERE status = 'dead' AND topology = :id"
            ),
            {"id": sums[: -len("_sums")].replace("_", "-")},
        )
        result = (
            {product: (total, n) for product, total, n in found},
            dict(map(tuple, seen)),
            sorted(f"{partition}@{offset}" for partition, offset in letters),
        )
    engine.dispose()
    return result


def compare(launcher: Launcher, *arguments: str) -> dict[str, Any]:
    done = launcher.run("compare", *arguments, "--json")
    assert done.status == 0, done.stderr
    found: dict[str, Any] = done.json()
    return found


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["crash", "batch"])
def test_records_that_are_set_aside_are_in_no_total_and_in_the_report(
    launcher: Launcher, services: Services, unique: str, kind: str
) -> None:
    (launcher.directory / "sums.py").write_text(_SUMS, encoding="utf-8")
    topic = f"sums-{unique}"
    assert launcher.run("topic", "create", topic, "--partitions", "2").status == 0
    lines, cents, numbers, bad = rows_and_truth()
    produce(services.kafka, topic, lines, partitions=2)
    faults = launcher.directory / "faults.json"
    faults.write_text(json.dumps([{"fault": kind, "txid": 6}]))
    asked = ("sums:topology", "--topic", topic, "--records", "600", "--faults", str(faults), "--keep")
    found = compare(launcher, *asked)

    assert found["truth"] == "kafka-python's consumer and a plain fold of its records"
    assert found["true_totals"] == {
        "seen.n": numbers.total(), "sums.cents": cents.total(), "sums.n": numbers.total(),
    }  # fmt: skip
    assert found["true_dead_letters"] == len(bad) == 17
    for run in RUNS:
        sums, seen, letters = stored(launcher.database, run)
        one = found["semantics"][run]
        assert (one["dead_letters"], one["wrong_dead_letters"]) == (len(bad), 0)
        assert letters == sorted(bad)
        is_exact = sums == {product: (cents[product], numbers[product]) for product in numbers}
        is_exact = is_exact and seen == dict(numbers)
        assert one["exact"] is is_exact is (run != "non-transactional" or kind != "crash")
        if not is_exact:
            total = sum(n for _, n in sums.values())
            assert one["columns"]["sums.n"]["doubled"] == total - numbers.total() > 0
            assert one["columns"]["seen.n"]["doubled"] == sum(seen.values()) - numbers.total() > 0
    told = launcher.run("compare", *asked[:-1])
    assert f"{len(bad)} records set aside, by kafka-python's consumer" in told.stdout
    assert "dead letters" in told.stdout


@pytest.mark.soak
def test_the_example_of_dead_letters_is_compared_as_it_is(
    launcher: Launcher, services: Services, unique: str
) -> None:
    """Its factory takes two semantics, and its bad orders are such by a currency without a rate."""
    topic = f"orders-{unique}"
    assert launcher.run("topic", "create", topic, "--partitions", "2").status == 0
    orders = [
        json.dumps({"product": "tea", "amount": "0.25", "currency": "USD" if number % 50 == 7 else "EUR"})
        for number in range(400)
    ]
    produce(services.kafka, topic, orders, partitions=2)
    good = sum('"EUR"' in order for order in orders)
    found = compare(launcher, "txstream.examples.bad_orders:topology", "--topic", topic, "--records", "400",
                    "--faults", "batch")  # fmt: skip
    assert found["true_totals"] == {"turnover.euros": f"{good * 25 / 100:.2f}", "turnover.orders": good}
    for run in RUNS:
        one = found["semantics"][run]
        assert (one["exact"], one["dead_letters"], one["wrong_dead_letters"]) == (True, 400 - good, 0)
