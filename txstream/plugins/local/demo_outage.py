"""`txstream demo outage`: partitions that go away while a batch is processed, and come back.

Invariants: those of `demo`. It kills only brokers of its own.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txstream.cli.context import Cli
from txstream.core.wording import counted, in_order
from txstream.plugins.local.demo import (
    PREFIX,
    Demo,
    DemoError,
    SemanticsName,
    differences,
    prepare,
    read_state,
    tell_exact,
)
from txstream.plugins.local.demo_services import services_for

if TYPE_CHECKING:
    from txstream.engine.loop.report import RunReport
    from txstream.engine.run import RunningTopology
    from txstream.inspect.records import Batch, BatchDetails
    from txstream.plugins.local.embedded import EmbeddedKafka
    from txstream.settings import Settings

PARTITIONS = 16

_BACK_AFTER_TXID = 4
_KILLED_NODE = 2
_HIDDEN_PARTITION = 3
_LEAST_SECONDS = 3.0  # a wait that is over at once shows nothing
_DEADLINE_SECONDS = 120.0
_TICK_SECONDS = 0.1


@dataclass(frozen=True)
class Played:
    """One run, and what its ledger has. `replayed` is the batch that failed in the outage."""

    semantics: SemanticsName
    table: str
    report: RunReport
    batches: Sequence[Batch]
    replayed: BatchDetails
    wrong: Sequence[tuple[str, int, int]]

    @property
    def held_the_same(self) -> bool:
        """Did the replay hold the same ranges as the first failed attempt?"""
        return self.replayed.failed_attempts[0].ranges == self.replayed.ranges

    @property
    def came_from(self) -> int | None:
        """The first txid with records of the partitions that the replay left out."""
        txid, away = self.replayed.batch.txid, self.replayed.unavailable.keys()
        later = (one for one in self.batches if one.txid > txid)
        return next((one.txid for one in later if away & one.first.metas["partitions"].keys()), None)


def play_outage(cli: Cli, given: Settings, words: int, *, injected: bool, keep: bool) -> int:
    """Play the whole demo. Return its exit status."""
    both: tuple[SemanticsName, ...] = ("transactional", "opaque")
    with _started(cli, given, injected=injected) as (settings, kafka):
        here = prepare(cli, settings, words, both[0], f"{PREFIX}outage-", PARTITIONS, keep=keep)
        played = []
        for one in both:
            table = f"{here.table}_{one}"
            played.append(_play(replace(here, semantics=one, table=table), kafka))
            if not cli.as_json:
                _tell(cli, played[-1])
    is_exact = not any(one.wrong for one in played)
    if cli.as_json:
        runs = [_document(one) for one in played]
        cli.print_json({"topic": here.name, "injected": injected, "runs": runs, "exact": is_exact})
    return 0 if is_exact else 1


@contextlib.contextmanager
def _started(cli: Cli, given: Settings, *, injected: bool) -> Iterator[tuple[Settings, EmbeddedKafka | None]]:
    """Yield settings with running services. Unless the outage is injected, these are the demo's own, with two
    brokers, one of which will be killed."""
    from txstream.plugins.local.embedded import EmbeddedKafka, EmbeddedZooKeeper

    if injected:
        with services_for(cli, given) as settings:
            yield settings, None
        return
    folder = given.data_dir / "demo-outage"
    cli.say("starting ZooKeeper and two Kafka brokers")
    with (
        EmbeddedZooKeeper(folder) as zookeeper,
        EmbeddedKafka(folder, brokers=2, console=cli.error_console()) as kafka,
    ):
        cli.say(f"started ZooKeeper at {zookeeper.address} and Kafka at {kafka.address}")
        yield replace(given, zookeeper=zookeeper.address, kafka=kafka.address), kafka


# --- a run -------------------------------------------------------------------------------------------------


def _play(here: Demo, kafka: EmbeddedKafka | None) -> Played:
    """Play one run, with the outage in it. Without brokers that may be killed the outage is injected."""
    from txstream.engine.run import start
    from txstream.plugins.local.outage import Outage, outage_topology

    say = here.cli.say
    with tempfile.TemporaryDirectory(prefix="txstream-demo-") as folder:
        outage = Outage(Path(folder))
        hidden = f"{here.name}/{_HIDDEN_PARTITION}"
        topology = outage_topology(
            f"{here.name}-{here.semantics}",
            here.name,
            here.table,
            here.semantics,
            outage,
            here.records_per_partition,
            [hidden] if kafka is None else [],
        )
        settings = replace(here.settings, fetch_timeout_seconds=3.0)
        say(f"{here.semantics}: counting; txid {outage.at.txid} will fail")
        running = start(topology, settings=settings, until="caught-up")
        try:
            _until(running, lambda: outage.is_due, f"txid {outage.at.txid}")
            began = time.monotonic()
            if kafka is None:
                say(f"{hidden} cannot be read from now on (injected)")
            else:
                pid = kafka.identities[_KILLED_NODE].pid
                kafka.stop_broker(_KILLED_NODE, kill=True)
                say(
                    f"killed Kafka broker {_KILLED_NODE} (process {pid}, {signal.SIGKILL.name}) while txid "
                    f"{outage.at.txid} was being processed"
                )
            outage.begin()
            if here.semantics == "transactional":
                _until(running, lambda: "partition" in str(running.progress.waiting_for), "the wait")
                _until(running, lambda: time.monotonic() - began > _LEAST_SECONDS, "its end")
            else:
                _until(running, lambda: running.progress.committed_txid >= _BACK_AFTER_TXID, "other batches")
            if kafka is None:
                say(f"{hidden} can be read again")
            else:
                kafka.start_broker(_KILLED_NODE)
                say(f"started Kafka broker {_KILLED_NODE} again")
            outage.end()
            _until(running, lambda: running.progress.lag_records == 0, "the end of the topic")
            report = running.wait(_DEADLINE_SECONDS)
        except BaseException:
            running.abort()
            with contextlib.suppress(Exception):
                running.wait(_DEADLINE_SECONDS)  # Spark ends with it
            raise
    return _collect(here, report, outage.at.txid)


def _until(running: RunningTopology, condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition. Raises the error that ended the run, or DemoError when time is up."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not condition() and running.is_running:
        if time.monotonic() > deadline:
            raise DemoError(f"the run did not come to {what} within {_DEADLINE_SECONDS:g} s")
        with contextlib.suppress(TimeoutError):
            running.wait(_TICK_SECONDS)


def _collect(here: Demo, report: RunReport, txid: int) -> Played:
    from txstream.inspect.ledgers import details, merge

    table, ledger = read_state(here, report.topology)
    batches = merge({"": ledger})
    replayed = next(details(one) for one in batches if one.txid == txid)
    if not replayed.failed_attempts:
        raise DemoError(f"txid {txid} was to fail in the outage, and did not")
    played = Played(here.semantics, here.table, report, batches, replayed, differences(here.truth, table))
    if here.semantics == "transactional" and not played.held_the_same:
        raise DemoError(f"the replay of txid {txid} did not hold the same ranges as its first attempt")
    return played


# --- after -------------------------------------------------------------------------------------------------


def _tell(cli: Cli, played: Played) -> None:
    from txstream.cli.inspection import shown_left_out
    from txstream.inspect.ledgers import failed_attempts

    cli.print_table(
        [">txid", ">tuples", ">failed", ">left out"],
        [
            [
                one.txid,
                one.first.tuples,
                len(failed_attempts(one.first)) or "",
                shown_left_out(one.first.metas),
            ]
            for one in played.batches
        ],
    )
    txid, topology = played.replayed.batch.txid, played.report.topology
    away = counted(len(played.replayed.unavailable), "partition")
    told = (
        "waited, and held the same ranges"
        if played.held_the_same
        else f"left out {away}, whose records came from txid {played.came_from} on"
    )
    cli.print(f"{played.semantics}: the replay of txid {txid} {told}")
    cli.print(f"more of it: txstream batches {topology} --left-out; txstream show {topology} {txid}")
    tell_exact(cli, played.wrong)


def _document(played: Played) -> dict[str, Any]:
    return {
        "semantics": played.semantics,
        "topology": played.report.topology,
        "table": played.table,
        "exact": not played.wrong,
        "batches": len(played.batches),
        "failed_attempts": played.report.failed_attempts,
        "replayed": int(played.replayed.batch.txid),
        "held_the_same": played.held_the_same,
        "left_out": sorted(played.replayed.unavailable, key=in_order),
        "came_from": played.came_from,
        "differences": [{"word": w, "text": text, "table": table} for w, text, table in played.wrong],
    }
