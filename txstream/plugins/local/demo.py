"""`txstream demo`: an exactly-once word count on this machine, killed in the middle and resumed.

Invariants: the truth is counted from the text itself, never from Kafka or from a run. When the demo ends,
however it ends, nothing that it started still runs. Its topic, topology and table stay until the next demo.
"""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from txstream.cli.context import Cli
from txstream.cli.options import command
from txstream.core.errors import TxstreamError, UsageError
from txstream.core.wording import counted
from txstream.inspect.ledgers import throughput
from txstream.plugins.local.demo_services import ended_by_signals, services_for
from txstream.plugins.local.demo_text import count_words, make_text
from txstream.settings import to_environment

if TYPE_CHECKING:
    from txstream.plugins.local.demo_services import DriverEnd
    from txstream.plugins.local.kafka_topics import KafkaTopics
    from txstream.settings import Settings
    from txstream.state import BatchRecord

PREFIX = "txstream-demo-"
TABLE_PREFIX = "demo_word_count_"
PARTITIONS = 4
LEAST_WORDS = 1_000

_WORD_COUNT = "txstream.examples.word_count:topology"
_BATCHES = 12
_SESSION_SECONDS = 4.0  # how long the second driver stands by until ZooKeeper gives up the killed one
_SHOWN_WORDS = 10
_SHOWN_DIFFERENCES = 10
_TAIL_LINES = 5

SemanticsName = Literal["opaque", "transactional", "non-transactional"]


class DemoError(TxstreamError):
    """The demo did not go as it should."""

    exit_status: ClassVar[int] = 1


def register(app: typer.Typer) -> None:
    command(app, "demo")(demo)


@dataclass(frozen=True)
class Demo:
    """One demo: its names, its text and the truth about it."""

    cli: Cli
    settings: Settings
    semantics: SemanticsName
    name: str
    table: str
    lines: list[str]
    truth: Mapping[str, int]
    partitions: int = PARTITIONS

    @property
    def records_per_partition(self) -> int:
        """The records per batch and partition, chosen so that there are about twelve batches."""
        return max(1, len(self.lines) // (self.partitions * _BATCHES))


@dataclass(frozen=True)
class Result:
    """The outcome of a demo."""

    table: Mapping[str, int]
    report: Mapping[str, Any]
    batches: int
    killed_at: Mapping[str, Any]
    run_again: list[int]
    records_per_second: float


def demo(
    cli: Cli,
    story: Annotated[
        Literal["outage"] | None,
        typer.Argument(metavar="outage", help="Kill a Kafka broker instead of the driver."),
    ] = None,
    words: Annotated[
        int, typer.Option("--words", metavar="N", help="How many words the text has.", min=LEAST_WORDS)
    ] = 200_000,
    semantics: Annotated[
        SemanticsName, typer.Option("--semantics", help="non-transactional is the baseline that miscounts.")
    ] = "opaque",
    keep: Annotated[
        bool, typer.Option("--keep", help="Do not remove older demos' topics, topologies and tables.")
    ] = False,
    injected: Annotated[
        bool, typer.Option("--injected", help="With outage: no broker is killed, one partition is hidden.")
    ] = False,
) -> int:
    """Count words exactly once, though the driver is killed. Starts all it needs on this machine.

    With --semantics non-transactional the driver is killed between the commit of its first batch and the note
    of it, and that batch is counted twice: what the other two prevent.

    With outage a Kafka broker is killed while a batch is processed, and comes back: a transactional run waits
    for its partitions, then an opaque run goes on without them.

    Ends with status 0 when every total is exact, and with 1 when one is not, as it is with non-transactional.
    """
    from txstream.cli.java import find_java
    from txstream.plugins.local.embedded.files import locked

    if injected and story is None:
        raise UsageError("--injected is about an outage: `txstream demo outage --injected`")
    if story is not None and semantics != "opaque":
        raise UsageError("an outage is shown under opaque and transactional semantics; give no --semantics")
    given = cli.settings.resolve_given()
    if story is not None and given.master and not given.master.startswith("local"):
        raise UsageError(f"the demo of an outage runs on this machine alone, not on {given.master}")
    find_java()
    given.make_data_dir()
    with (
        ended_by_signals(),
        locked(given.data_dir / "demo.lock", waiting_for="running a demo here", timeout_seconds=1),
    ):
        if story is not None:
            from txstream.plugins.local.demo_outage import play_outage

            return play_outage(cli, given, words, injected=injected, keep=keep)
        with services_for(cli, given) as settings:
            here = prepare(cli, settings, words, semantics, PREFIX, PARTITIONS, keep=keep)
            result = _count(here)
    return _tell(here, result)


def prepare(
    cli: Cli,
    settings: Settings,
    words: int,
    semantics: SemanticsName,
    prefix: str,
    partitions: int,
    *,
    keep: bool,
) -> Demo:
    """Remove older demos of this prefix, and put the text into a topic."""
    if not keep:
        _remove_older(cli, settings, prefix)
    lines = make_text(words)
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    table = f"{TABLE_PREFIX}{stamp.replace('-', '_')}"
    here = Demo(cli, settings, semantics, f"{prefix}{stamp}", table, lines, count_words(lines), partitions)
    _fill_topic(here)
    return here


# --- before ------------------------------------------------------------------------------------------------


def _remove_older(cli: Cli, settings: Settings, prefix: str) -> None:
    """Remove older demos' topologies, tables and topics, except those of a demo that runs now elsewhere."""
    from txstream.cli.databases import existing_database, open_zookeeper

    removed: set[str] = set()
    with open_zookeeper(settings) as zookeeper, existing_database(settings) as database:
        known = [] if database is None else [row.topology for row in database.topologies()]
        older = {name for name in (*zookeeper.topologies(), *known) if name.startswith(prefix)}
        for name in sorted(older):
            if zookeeper.living_driver(name) is not None:
                continue
            zookeeper.delete_topology(name)
            if database is not None:
                database.delete(name, drop_state=True)
            removed.add(name)
    running = older - removed
    removed.update(_topics(settings).remove(lambda name: name.startswith(prefix) and name not in running))
    if removed:
        cli.say(f"removed {len(removed)} older demo{'s' if len(removed) > 1 else ''}")


def _topics(settings: Settings) -> KafkaTopics:
    from txstream.plugins.local.kafka_topics import KafkaTopics

    return KafkaTopics(settings.require_kafka(), settings.connect_timeout_seconds)


def _fill_topic(here: Demo) -> None:
    topics = _topics(here.settings)
    topics.create(here.name, here.partitions)
    console = here.cli.error_console()
    records = [(None, line.encode()) for line in here.lines]
    what = f"{sum(here.truth.values()):,} words in {len(here.lines):,} lines"
    if console.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("producing lines", total=len(here.lines))
            topics.fill(here.name, records, here.partitions, lambda more: bar.update(task, advance=more))
    else:
        topics.fill(here.name, records, here.partitions, lambda _: None)
    here.cli.say(f"produced {what} into topic {here.name} ({counted(here.partitions, 'partition')})")


# --- the two runs ------------------------------------------------------------------------------------------


def _count(here: Demo) -> Result:
    killed_at = _run_and_be_killed(here)
    here.cli.say("running it again, to the end")
    report = _run_to_the_end(here)
    return _collect(here, killed_at, report)


def _arguments(here: Demo) -> list[str]:
    return [
        "run", _WORD_COUNT, "--id", here.name, "--until", "caught-up", "--json",
        "-p", f"topic={here.name}", "-p", f"table={here.table}", "-p", f"semantics={here.semantics}",
        "-p", f"max_records_per_partition={here.records_per_partition}",
        "--data-dir", str(here.settings.data_dir), "--session-timeout", f"{_SESSION_SECONDS:g}",
        "--connect-timeout", f"{here.settings.connect_timeout_seconds:g}",
        *(["--debug"] if here.cli.debug else []),
    ]  # fmt: skip


def _run_and_be_killed(here: Demo) -> Mapping[str, Any]:
    """Do the first run, which SIGKILLs itself after a commit. Return where."""
    from txstream.cli.faults import FAULT_LOG_VARIABLE, FAULT_VARIABLE, Fault
    from txstream.core.fault_points import At, Point
    from txstream.plugins.local.demo_services import run_driver

    # A run without a ledger counts a batch twice if it dies between the SQL commit and storing its progress.
    is_counted_twice = here.semantics == "non-transactional"
    at = At(Point.AFTER_COMMIT if is_counted_twice else Point.AFTER_ADVANCE, 1)
    fault = Fault("kill", at, only_open=not is_counted_twice)
    messages = here.cli.log_dir / "demo-first-run.log"
    with tempfile.TemporaryDirectory(prefix="txstream-demo-") as folder, _spinner(here, "counting"):
        log_file = Path(folder) / "fault.json"
        variables = {FAULT_VARIABLE: str(fault), FAULT_LOG_VARIABLE: str(log_file)}
        end = run_driver(
            [*_arguments(here), "--quiet"], to_environment(here.settings) | variables, messages=messages
        )
        if end.status != -signal.SIGKILL or not log_file.exists():
            raise DemoError(
                f"the first driver was to be killed between two batches, but ended with status {end.status}: "
                f"{_tail(messages)}; its messages are in {messages}"
            )
        killed_at: dict[str, Any] = json.loads(log_file.read_text(encoding="utf-8"))
    at = At(Point(killed_at["point"]), killed_at["txid"])
    batches = ", ".join(f"txid {txid} ({phase})" for txid, phase in killed_at["open"].items())
    while_open = f", while {batches} was open" if batches else ""
    here.cli.say(f"killed the driver (process {end.pid}, SIGKILL) {at.shown}{while_open}")
    return killed_at


def _run_to_the_end(here: Demo) -> Mapping[str, Any]:
    from txstream.plugins.local.demo_services import run_driver

    end: DriverEnd = run_driver(
        [*_arguments(here), *(["--quiet"] if here.cli.quiet else [])], to_environment(here.settings)
    )
    if end.status != 0:
        raise DemoError(f"the second driver ended with status {end.status}; what it said is above")
    report: dict[str, Any] = json.loads(end.output)
    return report


@contextlib.contextmanager
def _spinner(here: Demo, what: str) -> Iterator[None]:
    console = here.cli.error_console()
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        yield


def _tail(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return " / ".join([line.strip() for line in lines if line.strip()][-_TAIL_LINES:]) or "it said nothing"


# --- after -------------------------------------------------------------------------------------------------


def _collect(here: Demo, killed_at: Mapping[str, Any], report: Mapping[str, Any]) -> Result:
    from txstream.core.transaction import epoch_of

    table, ledger = read_state(here, here.name)
    # A batch was processed again if it was open at the kill and has the second driver's epoch.
    second = [row for row in ledger if epoch_of(row.attempt) == report["epoch"]]
    again = [int(row.txid) for row in second if str(row.txid) in killed_at["open"]]
    return Result(table, report, len(ledger), killed_at, again, throughput(second))


def read_state(here: Demo, topology: str) -> tuple[Mapping[str, int], list[BatchRecord]]:
    """Return a topology's table and ledger."""
    from txstream.state import open_sql_database

    database = open_sql_database(
        here.settings.database_url(), connect_timeout_seconds=here.settings.connect_timeout_seconds
    )
    try:
        rows = database.top(here.table, topology=topology, n=len(here.truth) + 1_000_000)
        return {row["word"]: row["n"] for row in rows}, database.batches(topology)
    finally:
        database.close()


def differences(truth: Mapping[str, int], table: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Return the words whose totals differ, each with its count in the text and in the table."""
    return [
        (word, truth.get(word, 0), table.get(word, 0))
        for word in sorted(truth.keys() | table.keys())
        if truth.get(word, 0) != table.get(word, 0)
    ]


def _tell(here: Demo, result: Result) -> int:
    wrong = differences(here.truth, result.table)
    figures = {
        "words": sum(here.truth.values()),
        "different_words": len(here.truth),
        "records": len(here.lines),
        "batches": result.batches,
        "records_per_second": round(result.records_per_second, 1),
        "replayed_attempts": len(result.run_again) + result.report["replayed_attempts"],
        "recovered_batches": result.report["recovered_batches"],
    }
    if here.cli.as_json:
        document = {"topology": here.name, "table": here.table, "semantics": here.semantics, **figures}
        document |= {"killed_at": dict(result.killed_at), "exact": not wrong}
        document["differences"] = [{"word": w, "text": text, "table": table} for w, text, table in wrong]
        here.cli.print_json(document)
        return 1 if wrong else 0
    _print_top_words(here, result)
    _print_figures(here, result, figures)
    status = tell_exact(here.cli, wrong, _why_not(here, result))
    here.cli.say(f"see every attempt of {here.name} in a browser: `txstream up`, then `txstream ui`")
    return status


def tell_exact(cli: Cli, wrong: Sequence[tuple[str, int, int]], why_not: str = "") -> int:
    """Print some of the differences, if there are any, and the last line. Return the exit status."""
    for word, text, table in wrong[:_SHOWN_DIFFERENCES]:
        cli.print(f"  {word}: {text:,} in the text, {table:,} in the table")
    if len(wrong) > _SHOWN_DIFFERENCES:
        cli.print(f"  and {counted(len(wrong) - _SHOWN_DIFFERENCES, 'word')} more")
    cli.print(f"exact: no{why_not}" if wrong else "exact: yes")
    return 1 if wrong else 0


def _why_not(here: Demo, result: Result) -> str:
    more = sum(result.table.values()) - sum(here.truth.values())
    if here.semantics != "non-transactional" or more <= 0:
        return ""
    return (
        f", {more:,} words too many: txid {result.killed_at['txid']} was committed before the kill and "
        f"counted again after it; opaque and transactional semantics find it in the ledger"
    )


def _print_top_words(here: Demo, result: Result) -> None:
    top = sorted(result.table.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN_WORDS]
    here.cli.print_table(
        ["word", ">in the table", ">in the text"], [[word, n, here.truth.get(word, 0)] for word, n in top]
    )


def _print_figures(here: Demo, result: Result, figures: Mapping[str, Any]) -> None:
    again = f" (txid {', '.join(map(str, result.run_again))}, open at the kill)" if result.run_again else ""
    recovered = (
        f", {counted(figures['recovered_batches'], 'plan')} recovered" if figures["recovered_batches"] else ""
    )
    here.cli.print(
        f"records/s: {figures['records_per_second']:,.0f} between the second run's first and last commit "
        f"({result.report['records']:,} records in {result.report['seconds']:.1f} s with Spark's start)"
    )
    here.cli.print(f"batches: {figures['batches']:,} ({here.semantics}){recovered}")
    here.cli.print(f"replayed attempts: {figures['replayed_attempts']:,}{again}")
    here.cli.print(
        f"totals compared: {figures['different_words']:,} words, {figures['words']:,} times in the text, "
        f"{sum(result.table.values()):,} in table {here.table}"
    )
