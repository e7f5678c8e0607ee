"""A bug on Monday, found on Wednesday, exact on Thursday: a fixed version beside the one that runs.

python -m txstream.examples.bug_since_monday

plays it on this machine, with services of its own in a folder that is removed at the end. Each command is
shown before it runs. The truth is added up from what was sold, never from Kafka or from a run. Ends with
status 0 when the totals are wrong until Wednesday and exact on Thursday.
"""

from __future__ import annotations

import json
import shlex
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Literal

from txstream import (
    BasicBolt,
    Count,
    KafkaSource,
    OpaqueSpout,
    OutputCollector,
    SqlState,
    SqlStateBolt,
    Sum,
    Topology,
    TransactionalTopologyBuilder,
    Tuple,
)
from txstream.spouts.kafka import Decode

Version = Literal["monday", "fixed"]
Sale = tuple[str, int]
CODE = "txstream.examples.bug_since_monday:topology"
SHOPS = ("Bergen", "Oslo", "Tromsø", "Vadsø")


class Amount(BasicBolt):
    """What a sale adds to its shop's total. Monday's version takes a refund for a sale."""

    output = "shop string, cents bigint"

    def __init__(self, version: Version) -> None:
        self.version = version

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        cents = tup["cents"]
        collector.emit((tup["shop"], abs(cents) if self.version == "monday" else cents))


def topology(version: Version = "fixed") -> Topology:
    source = KafkaSource("sales", decode=Decode("json", "shop string, cents bigint"))
    builder = TransactionalTopologyBuilder("shops", "sales", OpaqueSpout(source))
    builder.set_bolt("amount", Amount(version)).shuffle_grouping("sales")
    state = SqlState("totals", key="shop string", value="cents bigint, sales bigint")
    store = SqlStateBolt(state, cents=Sum("cents"), sales=Count())
    builder.set_committer_bolt("store", store).fields_grouping("amount", "shop")
    return builder.build()


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Week:
    """What was sold, and the commands of the week."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sold: list[Sale] = []

    def txstream(self, command: str, *, status: int = 0) -> str:
        """Run a command, which is to end with this status, and return what it printed."""
        say(f"$ txstream {command}")
        arguments = [sys.executable, "-m", "txstream", *shlex.split(command)]
        done = subprocess.run(arguments, cwd=self.folder, stdout=subprocess.PIPE, text=True, check=False)
        say(done.stdout)
        if done.returncode != status:
            raise SystemExit(f"txstream {command} ended with status {done.returncode}, expected {status}")
        return done.stdout

    def sell(self, count: int) -> None:
        """Sell, and take back every seventh."""
        numbers = range(len(self.sold), len(self.sold) + count)
        sold = [(SHOPS[n * n % 4 + n % 2], -500 if n % 7 == 3 else 100 * (n % 11)) for n in numbers]
        self.sold += sold
        lines = [json.dumps({"shop": shop, "cents": cents}) for shop, cents in sold]
        (self.folder / "sales.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.txstream("topic produce sales sales.jsonl --format json --key shop")

    @property
    def truth(self) -> dict[str, tuple[int, int]]:
        """What each shop has taken, and in how many sales."""
        cents, sales = Counter[str](), Counter[str]()
        for shop, amount in self.sold:
            cents[shop] += amount
            sales[shop] += 1
        return {shop: (cents[shop], sales[shop]) for shop in sales}

    def totals(self) -> dict[str, tuple[int, int]]:
        """What the table says, read without us."""
        with sqlite3.connect(self.folder / ".txstream" / "state.db") as file:
            return {shop: (c, n) for shop, c, n in file.execute("SELECT shop, cents, sales FROM totals")}

    def tell(self, day: str) -> bool:
        wrong = sorted(shop for shop, total in self.truth.items() if self.totals().get(shop) != total)
        say(f"{day}: wrong in {', '.join(wrong)}\n" if wrong else f"{day}: exact: yes\n")
        return not wrong


def play(week: Week) -> bool:
    """Play the week; return whether it went as it should."""
    week.txstream("topic create sales --partitions 2")
    week.sell(300)
    week.txstream(f"run {CODE} -p version=monday --until caught-up")
    is_found = not week.tell("Monday")
    week.sell(200)
    week.txstream(f"run {CODE} -p version=monday --until caught-up")
    is_found = not week.tell("Wednesday") and is_found
    week.txstream(f"fork shops fixed --from earliest --code {CODE} -p version=fixed")
    week.txstream(f"run {CODE} -p version=fixed --as fixed --until caught-up --max-records-per-second 20000")
    week.txstream("diff shops fixed", status=1)
    week.txstream("swap shops fixed --yes")
    week.sell(100)
    week.txstream(f"run {CODE} -p version=fixed --until caught-up")
    return week.tell("Thursday") and is_found


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="txstream-bug-") as folder:
        week = Week(Path(folder))
        week.txstream("up")
        try:
            return 0 if play(week) else 1
        finally:
            week.txstream("down")


if __name__ == "__main__":
    sys.exit(main())
