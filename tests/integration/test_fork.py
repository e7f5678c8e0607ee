"""A fork over Kafka, with states in PostgreSQL: a bug since Monday, found, looked at, exact."""

from __future__ import annotations

import json
from collections import Counter
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from support.postgres_tools import administrator
from support.runs import Launcher
from support.texts import create_topic, produce

pytestmark = pytest.mark.timeout(300)

# The shop's first version counts a refund as a sale.
CODE = """
from txstream import (
    BasicBolt, Count, Max, OpaqueSpout, SqlState, SqlStateBolt, Sum, TransactionalTopologyBuilder
)
from txstream.spouts.kafka import Decode, KafkaSource


class Amount(BasicBolt):
    output = "shop string, cents bigint"

    def execute(self, tup, collector):
        collector.emit([tup["shop"], AMOUNT])


def topology(name):
    source = KafkaSource(name, decode=Decode("json", "shop string, cents bigint"), publish_group=name)
    builder = TransactionalTopologyBuilder(name, "sales", OpaqueSpout(source, max_batch_records=20))
    builder.set_bolt("amount", Amount()).shuffle_grouping("sales")
    state = SqlState(f"{name}_totals", key="shop string", value="total bigint, n bigint MORE
    store = builder.set_committer_bolt("store", SqlStateBolt(state, total=Sum("cents"), n=Count()REDUCER))
    store.fields_grouping("amount", "shop")
    return builder.build()
"""


def code(amount: str, more: str = '")', reducer: str = ")") -> str:
    return CODE.replace("AMOUNT", amount).replace(" MORE", more).replace("REDUCER)", reducer)


class Shop:
    def __init__(self, launcher: Launcher, postgres: str, name: str) -> None:
        self.launcher, self.postgres, self.name = replace(launcher, database=postgres), postgres, name
        write = self.launcher.directory.joinpath
        write("shop_monday.py").write_text(code('abs(tup["cents"])'), encoding="utf-8")
        fixed = code('tup["cents"]')
        write("shop_wednesday.py").write_text(fixed, encoding="utf-8")
        grown = code('tup["cents"]', ', biggest bigint", defaults={"biggest": 0})', ', biggest=Max("cents"))')
        write("shop_thursday.py").write_text(grown, encoding="utf-8")
        create_topic(self.launcher.services.kafka, name, 2)
        self.sales: list[tuple[str, int]] = []

    def sell(self, count: int) -> None:
        numbers = range(len(self.sales), len(self.sales) + count)
        sales = [(f"shop{number % 5}", 100 * number * (-1 if number % 9 == 4 else 1)) for number in numbers]
        self.sales += sales
        records = [json.dumps({"shop": shop, "cents": cents}).encode() for shop, cents in sales]
        produce(self.launcher.services.kafka, self.name, records, 2)

    def run(self, module: str, *more: str) -> None:
        arguments = (f"{module}:topology", "-p", f"name={self.name}", "--until", "caught-up", *more)
        ended = self.launcher.run("run", *arguments, "--session-timeout", "1")
        assert ended.status == 0, ended.stderr

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.postgres.replace("postgresql+psycopg", "postgresql")) as connection:
            return connection.execute(query).fetchall()

    def totals(self, suffix: str = "", columns: str = "total, n") -> dict[str, tuple[int, ...]]:
        found = self.rows(f"SELECT shop, {columns} FROM {self.name}_totals{suffix}")
        return {row[0]: row[1:] for row in found}

    def truth(self, amount: Any = lambda cents: cents) -> dict[str, tuple[int, ...]]:
        """Return what is right, from what was sold."""
        totals: Counter[str] = Counter()
        for shop, cents in self.sales:
            totals[shop] += amount(cents)
        return {shop: (total, sum(one == shop for one, _ in self.sales)) for shop, total in totals.items()}


@pytest.mark.parametrize("on_spark", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_fork_reads_all_again_by_other_code_and_the_difference_is_told(
    launcher: Launcher, postgres_url: str, unique: str, on_spark: bool
) -> None:
    shop = Shop(launcher if on_spark else launcher.without_spark, postgres_url, unique)
    shop.sell(60)
    shop.run("shop_monday")
    wrong = shop.truth(abs)
    assert shop.totals() == wrong
    made = shop.launcher.run(
        "fork", unique, "fixed", "--code", "shop_wednesday:topology", "-p", f"name={unique}"
    )
    assert made.status == 0, made.stderr
    assert f"txstream run shop_wednesday:topology -p name={unique} --as fixed" in made.stdout
    away = shop.launcher.run("diff", unique, "fixed", "--now")
    assert (away.status, f"without the last 60 records of {unique}" in away.stdout) == (1, True), away.stdout
    assert f"state {unique}_totals: only in {unique}" in away.stdout, "the fork has not run yet"
    shop.run("shop_wednesday", "--as", "fixed", "--max-records-per-second", "1000")
    assert (shop.totals(), shop.totals("__fixed")) == (wrong, shop.truth())
    told = shop.launcher.run("diff", unique, "fixed", "--json")
    right = shop.truth()
    different = sorted(
        ((abs(wrong[name][0] - right[name][0]), name) for name in right if wrong[name] != right[name]),
        reverse=True,
    )
    assert told.status == 1, told.stderr
    (state,) = told.json()["states"]
    numbers = {name: state[name] for name in ("table", "equal", "only_old", "only_new", "different")}
    assert numbers == {
        "table": f"{unique}_totals",
        "equal": 5 - len(different),
        "only_old": 0,
        "only_new": 0,
        "different": len(different),
    }
    assert [(row["size"], row["key"]["shop"]) for row in state["rows"]] == different
    assert told.json()["bolts"]["changed"] == ["amount"]
    # Both go on, each by its own code, and the fork's txids are its own.
    shop.sell(30)
    shop.run("shop_wednesday", "--as", "fixed")
    ahead = shop.launcher.run("diff", unique, "fixed", "--now", "--json")
    assert (ahead.status, ahead.json()["taken_out"]) == (1, {"fixed": 30}), ahead.stderr
    assert (ahead.json()["states"], ahead.json()["places"]) == (told.json()["states"], told.json()["places"])
    shop.run("shop_monday")
    assert (shop.totals(), shop.totals("__fixed")) == (shop.truth(abs), shop.truth())
    ledger = shop.rows("SELECT topology, min(txid), sum(tuples) FROM txstream_batch GROUP BY 1 ORDER BY 1")
    assert ledger == sorted([("fixed", 1, 90), (unique, 1, 90)])


@pytest.mark.soak
def test_a_fork_from_a_savepoint_or_a_time_begins_there_with_a_column_more(
    launcher: Launcher, postgres_url: str, unique: str
) -> None:
    shop = Shop(launcher.without_spark, postgres_url, unique)
    shop.sell(40)
    shop.run("shop_wednesday")
    assert shop.launcher.run("savepoint", "create", unique, "monday").status == 0
    between = datetime.now(UTC)
    shop.sell(30)
    shop.run("shop_wednesday")
    code = ("--code", "shop_thursday:topology", "-p", f"name={unique}")
    for name, where in (("saved", ("--at", "monday")), ("timed", ("--from", between.isoformat()))):
        made = shop.launcher.run("fork", unique, name, *where, *code)
        assert made.status == 0, made.stderr
        told = shop.launcher.run("status", name, "--json").json()["remarks"]["fork"]
        assert (told["of"], told["behind_records"]) == (unique, 30)
        shop.run("shop_thursday", "--as", name)
    assert shop.totals("__saved") == shop.truth()
    columns = "total, n, biggest"
    since = shop.sales[40:]
    biggest = {one: max(cents for shop_name, cents in since if shop_name == one) for one, _ in since}
    assert {one: row[2] for one, row in shop.totals("__saved", columns).items()} == {
        one: max(0, cents) for one, cents in biggest.items()
    }, "rows of the savepoint have the default, and the maximum grows from there"
    assert {one: row[1:] for one, row in shop.totals("__timed", columns).items()} == {
        one: (sum(name == one for name, _ in since), cents) for one, cents in biggest.items()
    }
    told = shop.launcher.run("diff", unique, "saved")
    assert told.status == 0, told.stdout + told.stderr
    assert f"state {unique}_totals: column biggest added, rows are the same" in told.stdout
    gone = shop.launcher.run("delete", "timed", "--drop-state", "--yes")
    assert (gone.status, shop.rows("SELECT count(*) FROM txstream_fence")) == (0, [(2,)]), gone.stderr
    assert shop.launcher.run("fork", unique, "timed").status == 0, "and its name is free again"
    # After this time there is no record yet: it begins with what comes.
    made = shop.launcher.run("fork", unique, "late", "--from", datetime.now(UTC).isoformat(), *code)
    assert made.status == 0, made.stderr
    shop.sell(10)
    shop.run("shop_thursday", "--as", "late")
    newest = [name for name, _ in shop.sales[-10:]]
    assert {one: n for one, (_, n) in shop.totals("__late").items()} == {
        one: newest.count(one) for one in newest
    }


@pytest.mark.soak
def test_a_topology_moves_to_another_database(launcher: Launcher, postgres_url: str, unique: str) -> None:
    """By a copy of the whole database, or by counting everything again there."""
    shop = Shop(launcher.without_spark, postgres_url, unique)
    shop.sell(40)
    shop.run("shop_wednesday")
    old, new = shop.totals(), f"{unique}_new"
    with administrator(postgres_url) as connection:
        connection.execute(f"CREATE DATABASE {new} TEMPLATE {unique}")
    moved = copy(shop)
    moved.postgres = postgres_url.replace(f"/{unique}?", f"/{new}?")
    assert moved.postgres != postgres_url
    moved.launcher, moved.sales = replace(shop.launcher, database=moved.postgres), list(shop.sales)
    moved.sell(30)
    moved.run("shop_wednesday")
    assert moved.totals() == moved.truth(), "each sale counts once"
    assert shop.totals() == old, "and nothing is written to the database of before"
    refused = shop.launcher.run(
        "run", "shop_wednesday:topology", "-p", f"name={unique}", "--until", "caught-up"
    )
    assert refused.status == 1, "which is behind now, so that no run goes on there by mistake"
    assert shop.totals() == old
    moved.run("shop_wednesday", "--as", "again", "--database", postgres_url)
    shop.sales = moved.sales
    assert shop.totals("__again") == shop.truth()
