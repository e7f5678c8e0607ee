"""`txstream compare`: one topology under the three semantics, through the same faults, side by side.

Invariant: whatever the command made is removed when it ends, however it ends, unless --keep is given.
"""

from __future__ import annotations

import contextlib
import logging
import math
import shlex
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstream.cli.context import Cli
from txstream.cli.factory import load_topology, shipped_module, user_code_prints_to_stderr
from txstream.cli.options import FactoryArguments, command
from txstream.core.errors import UsageError
from txstream.core.wording import counted, shown
from txstream.plugins.local.demo_services import ended_by_signals, services_for
from txstream.plugins.local.demo_text import WORDS_PER_LINE, count_words, make_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txstream.api.topology import Topology
    from txstream.plugins.compare.report import Tables
    from txstream.plugins.compare.run import Outcome
    from txstream.plugins.compare.schedule import Fault
    from txstream.plugins.proof.simulation.variant import Positions
    from txstream.settings import Settings

SEMANTICS = ("opaque", "transactional", "non-transactional")
_EXACT = ("opaque", "transactional")  # must be exact, whatever happens
_WORD_COUNT = "txstream.examples.word_count:topology"
_PARTITIONS = 4
_BATCHES = 16


def register(app: typer.Typer) -> None:
    command(app, "compare")(compare)


@dataclass(frozen=True)
class Comparison:
    """What is compared. `parameters` are the factory's, as for `-p`. `truth` is None until it is found;
    `truth_by` says by what; `dead` are the places of the records that must be dead letters."""

    cli: Cli
    settings: Settings
    target: str
    parameters: tuple[str, ...]
    records: int
    faults: tuple[Fault, ...]
    spark: SparkSession | None
    keep: bool
    truth: Tables | None = None
    truth_by: str = "the text itself"
    dead: frozenset[str] = frozenset()

    @property
    def engine(self) -> str:
        if self.spark is None:
            return "this process, without Spark"
        return f"Spark {self.settings.master or 'local[*]'}"


def compare(
    cli: Cli,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:FACTORY]",
            help="A function with a parameter `semantics` that returns a topology; unset: the word count.",
        ),
    ] = None,
    parameter: FactoryArguments = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", metavar="TOPIC", help="A topic of yours, FACTORY's `topic`; unset: made lines."
        ),
    ] = None,
    records: Annotated[
        int,
        typer.Option("--records", metavar="N", help="How many records about, from the beginning.", min=100),
    ] = 20_000,
    faults: Annotated[
        str,
        typer.Option(
            "--faults", metavar="NAME|FILE", help="none, batch, partition, crash, all, or a JSON file."
        ),
    ] = "all",
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page that shows what happened.")
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Run batches on Spark, as `run` does, not in this process.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the topologies, their tables and the topic of made lines.")
    ] = False,
) -> int:
    """Run a topology under each semantics, with the same faults.

    Each run has a topology id and tables of its own, which are removed at the end, and is compared with the
    truth: the text itself where it was made for this. For a topic of yours, kafka-python's consumer reads the
    records, and the bolts are called one after the other, without the engine; before that, each bolt gets a
    part of its input again, in another process, and must emit the same. What that cannot do has a run
    without faults for its truth. Starts ZooKeeper and Kafka on this machine unless they are given.

    Ends with status 1 when an opaque or a transactional total is not exact, or when nothing was shown: tables
    stay empty, a run commits fewer than two batches, or no fault strikes.
    """
    from txstream.cli.java import find_java
    from txstream.plugins.compare.schedule import load_schedule

    schedule = load_schedule(faults)
    if html is not None and not html.absolute().parent.is_dir():
        raise UsageError(f"--html {html}: there is no folder {html.absolute().parent}")
    find_java()
    given = cli.settings.resolve_given()
    given.make_data_dir()
    with ended_by_signals(), contextlib.ExitStack() as stack:
        settings = stack.enter_context(services_for(cli, given))
        chosen = target or _WORD_COUNT
        settings = replace(settings, py_files=stack.enter_context(shipped_module(chosen)) if spark else ())
        session = stack.enter_context(_session(cli, settings)) if spark else None
        given_parameters = (*(parameter or []), *([f"topic={topic}"] if topic else []))
        here = Comparison(cli, settings, chosen, given_parameters, records, schedule, session, keep)
        if target is None:
            share = max(1, records // (_PARTITIONS * _BATCHES))
            here = replace(here, parameters=(*given_parameters, f"max_records_per_partition={share}"))
            if topic is None:
                here = stack.enter_context(_made_lines(here))
        with user_code_prints_to_stderr():
            here, topology, outcomes = _play_all(here)
    typed = _command(target, given_parameters, records, faults, html, spark=spark)
    return _tell(here, typed, topology, outcomes, html)


def _command(
    target: str | None,
    parameters: tuple[str, ...],
    records: int,
    faults: str,
    html: Path | None,
    *,
    spark: bool,
) -> str:
    """Return the command that makes the same comparison. The services' addresses, which may hold passwords,
    are not part of it."""
    words = ["txstream", "compare", *([target] if target else [])]
    for parameter in parameters:
        words += ["-p", parameter]
    words += ["--records", str(records), "--faults", faults, *(["--spark"] if spark else [])]
    return shlex.join([*words, *(["--html", str(html)] if html else [])])


@contextlib.contextmanager
def _session(cli: Cli, settings: Settings) -> Iterator[SparkSession]:
    """One Spark session for all drivers, so that the cost of a fault does not include starting a JVM."""
    from txstream.engine.spark.log import spark_log
    from txstream.engine.spark.session import create_session

    conf = {"spark.sql.shuffle.partitions": "2"}  # for DataFrame bolts: the batches are small
    session = create_session(master=settings.master, conf=conf, log_file=spark_log(cli.log_dir, "compare"))
    try:
        yield session
    finally:
        session.stop()


@contextlib.contextmanager
def _made_lines(here: Comparison) -> Iterator[Comparison]:
    """Yield the comparison over a topic of lines made for it. The words of these lines are the truth."""
    from txstream.plugins.local.kafka_topics import KafkaTopics

    settings = here.settings
    topics = KafkaTopics(settings.require_kafka(), settings.connect_timeout_seconds)
    topic = f"txstream-compare-{uuid.uuid4().hex[:6]}"
    lines = make_text(2 * WORDS_PER_LINE * here.records)[: here.records]
    truth = {(word,): (count,) for word, count in count_words(lines).items()}
    topics.create(topic, _PARTITIONS)
    try:
        topics.fill(topic, [(None, line.encode()) for line in lines], _PARTITIONS, lambda _: None)
        here.cli.say(f"produced {counted(len(lines), 'line')} into topic {topic} ({_PARTITIONS} partitions)")
        yield replace(here, parameters=(*here.parameters, f"topic={topic}"), truth={"word_count": truth})
    finally:
        if not here.keep:
            topics.remove(lambda name: name == topic)


# --- the runs ----------------------------------------------------------------------------------------------


def _play_all(here: Comparison) -> tuple[Comparison, Topology, Mapping[str, Outcome]]:
    """Return the comparison with its truth, its opaque topology, and what came of each run."""
    from txstream.plugins.compare.run import end_of_log
    from txstream.plugins.compare.truth import BY_A_RUN, BY_FOLD, folded_truth

    topologies = _topologies(here)
    end = end_of_log(topologies["opaque"], here.settings, here.records)
    if not any(meta.end for meta in end.values()):
        raise UsageError(f"the source of {here.target} holds no records; there is nothing to compare")
    here.cli.say(f"batches run in {here.engine}")
    run = uuid.uuid4().hex[:6]
    if here.truth is None:
        folded = folded_truth(topologies["opaque"], here.settings, end)
        if folded is not None:
            here = replace(here, truth=folded.tables, truth_by=BY_FOLD, dead=folded.dead)
    if here.truth is None:
        quiet = _play(here, topologies["opaque"], f"{run}-truth", end, ())
        here = replace(here, truth=quiet.tables, truth_by=BY_A_RUN, dead=frozenset(quiet.dead))
    outcomes = {
        semantics: _play(here, topology, f"{run}-{semantics}", end, here.faults)
        for semantics, topology in topologies.items()
    }
    return here, topologies["opaque"], outcomes


def _topologies(here: Comparison) -> dict[str, Topology]:
    """Return the topology under each semantics. One with dead letters sends none to a topic, and its
    non-transactional variant is made here, as `build` has none."""
    from txstream.plugins.proof.simulation.variant import without_semantics

    found: dict[str, Topology] = {}
    for semantics in SEMANTICS:
        if found and found["opaque"].keeps:
            raise UsageError(
                f"table {min(found['opaque'].keeps)!r} has keep, so that the time of a run decides which "
                f"records are late, and three runs have no truth in common; compare the topology without keep"
            )
        late = [bolt.state for bolt, _ in found["opaque"].states if bolt.state.sets_aside] if found else []
        if late:
            raise UsageError(
                f"table {late[0].table!r} has {late[0].sets_aside}, so that the cut of batches decides which "
                f"records are late, and three runs have no truth in common; compare it with late='amend'"
            )
        if semantics not in _EXACT and found["opaque"].dead_letters is not None:
            found[semantics] = without_semantics(found["opaque"])
        else:
            found[semantics] = load_topology(here.target, [*here.parameters, f"semantics={semantics}"])
        if (letters := found[semantics].dead_letters) is not None:
            found[semantics] = replace(found[semantics], dead_letters=replace(letters, topic=None))
    return found


def _play(
    here: Comparison, topology: Topology, name: str, end: Positions, faults: tuple[Fault, ...]
) -> Outcome:
    from txstream.plugins.compare.run import play, removed
    from txstream.plugins.proof.simulation.variant import under_own_names, with_batches_of

    # It warns of calls that Python cannot end; here these only read.
    logging.getLogger("txstream.plugins.local.local_runner").setLevel(logging.ERROR)
    prefix = f"compare_{name.replace('-', '_')}_"
    own = under_own_names(topology, f"compare-{name}", prefix)
    own = with_batches_of(own, math.ceil(here.records / _BATCHES))
    here.cli.say(f"running {own.id}")
    with removed(own, here.settings, keep=here.keep):
        return play(own, here.settings, end, faults, spark=here.spark, prefix=prefix)


# --- what came of it ---------------------------------------------------------------------------------------


def _tell(
    here: Comparison,
    typed: str,
    topology: Topology,
    outcomes: Mapping[str, Outcome],
    page: Path | None,
) -> int:
    from txstream import __version__
    from txstream.inspect.json_documents import document as document_of
    from txstream.plugins.compare.report import columns_of, figures, in_a_sentence, nothing_shown, true_totals

    truth = here.truth or {}

    columns = columns_of(topology)
    found = {
        semantics: figures(outcome, truth, columns, here.dead) for semantics, outcome in outcomes.items()
    }
    document: dict[str, Any] = {
        "topology": here.target,
        "parameters": list(here.parameters),
        "command": typed,
        "version": __version__,
        "date": datetime.now(UTC).isoformat(" ", "seconds"),
        "engine": here.engine,
        "faults": [fault.to_document() for fault in here.faults],
        "truth": here.truth_by,
        "nothing_shown": nothing_shown(truth, outcomes),
        "true_totals": true_totals(truth, columns),
        "true_dead_letters": len(here.dead),
        "semantics": found,
    }
    _keep(here, document, topology, outcomes)
    if page is not None:
        from txstream.plugins.compare.page import html

        page.write_text(html(document, here.faults, outcomes, topology), encoding="utf-8")
        here.cli.say(f"wrote {page}")
    if here.cli.as_json:
        here.cli.print_json(document_of(document))
    else:
        _print(here, document)
        for semantics, one in found.items():
            here.cli.print(f"{semantics}: {in_a_sentence(one)}")
        if document["nothing_shown"]:
            here.cli.print(f"nothing was shown: {document['nothing_shown']}")
    is_exact = all(found[semantics]["exact"] for semantics in _EXACT)
    return 0 if is_exact and not document["nothing_shown"] else 1


def _keep(
    here: Comparison, document: Mapping[str, Any], topology: Topology, outcomes: Mapping[str, Outcome]
) -> None:
    """Keep the comparison for `txstream ui`."""
    from txstream.inspect.json_documents import document as document_of
    from txstream.plugins.compare.kept import keep
    from txstream.plugins.compare.page import drawn_charts
    from txstream.plugins.compare.report import in_a_sentence, side_by_side

    found = document["semantics"]
    shown_there = {
        "faults_in_words": [str(fault) for fault in here.faults],
        "told": {name: in_a_sentence(one) for name, one in found.items()},
        "side_by_side": side_by_side(found),
        "description": topology.describe(),
        "charts": drawn_charts(outcomes),
    }
    try:
        keep(here.settings.data_dir, document_of({**document, **shown_there}))
    except OSError as error:
        here.cli.say(f"txstream: the comparison was not kept for `txstream ui`: {error}")


def _print(here: Comparison, document: Mapping[str, Any]) -> None:
    found = document["semantics"]
    for fault in here.faults:
        here.cli.print(f"fault: {fault}")
    for semantics, one in found.items():
        for fault in one["faults_that_never_came"]:
            here.cli.say(
                f"txstream: {semantics} had no txid {fault['txid']}: its fault {fault['fault']} never came"
            )
    from txstream.plugins.compare.report import side_by_side

    here.cli.print_table(
        ["", *(f">{semantics}" for semantics in found)],
        [[words, *values] for words, values in side_by_side(found)],
    )
    totals = document["true_totals"].items()
    listed = "".join(f"{shown(total)} in {column}, " for column, total in totals)
    if document["true_dead_letters"]:
        listed += f"{counted(document['true_dead_letters'], 'record')} set aside, "
    here.cli.print(f"truth: {listed}by {document['truth']}")
