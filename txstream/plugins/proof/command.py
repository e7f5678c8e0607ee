"""`txstream simulate`: runs a topology through seeded schedules of faults in memory, or replays one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstream.cli.context import Cli
from txstream.cli.factory import load_topology, user_code_prints_to_stderr
from txstream.cli.options import FactoryArguments, command
from txstream.core.dead_letters import DeadLetter
from txstream.core.errors import DecodeError, UsageError

if TYPE_CHECKING:
    from txstream.api.spouts import PartitionedSpout
    from txstream.plugins.proof.simulation.program import Program
    from txstream.plugins.proof.simulation.report import Broken, SimulationReport

_WORD_COUNT = "txstream.examples.word_count:topology"
_LINES = ("the cat", "a dog", "the", "a cat and a dog", "the dog", "and", "a cat", "the the", "dog and cat")


def register(app: typer.Typer) -> None:
    command(app, "simulate", addresses=False, data_dir=False)(simulate)


def simulate(
    cli: Cli,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:FACTORY]", help="A function that returns a topology; unset: the word count."
        ),
    ] = None,
    parameter: FactoryArguments = None,
    rows: Annotated[
        Path | None,
        typer.Option(
            "--rows",
            metavar="FILE",
            help="Lines of JSON, such as a topic's; unset: the rows of the topology's MemorySpout.",
        ),
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option("--partition-by", metavar="FIELD", help="Keep rows of one value in their order."),
    ] = None,
    schedules: Annotated[
        int, typer.Option("--schedules", metavar="N", help="How many schedules to run.", min=1)
    ] = 1000,
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="S", help="The seed of the first one.", min=0),
    ] = 0,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", help="How many processes run them.", min=1)] = 1,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", help="How long each has faults.", min=1)
    ] = None,
    exhaustive: Annotated[
        bool,
        typer.Option("--exhaustive", help="Also every crash point of a short run, and every pair."),
    ] = False,
    save: Annotated[
        Path, typer.Option("--save", metavar="FILE", help="Where a schedule that fails is written.")
    ] = Path("txstream-schedule.json"),
    replay: Annotated[
        Path | None, typer.Option("--replay", metavar="FILE", help="Run this schedule, and show each step.")
    ] = None,
) -> int:
    """Run a topology through many schedules of faults, in memory.

    Its own bolts run, over rows in memory, under the driver, recovery and commit protocol of every run.
    Drivers crash between any two external writes, sleep and wake up late; answers are lost or come late;
    partitions cannot be read for a time; the way of committing changes. Each schedule must leave in the
    tables what a plain fold of the rows leaves: the bolts called one after the other, the reducers in Python,
    without the engine. The first that does not is shrunk, shown, and written to a file. Before that, each
    bolt gets a part of its input again, in another process with another clock and other hashes, and must emit
    the same.

    Ends with status 1 when a schedule fails, or when nothing was shown: no table got a row, no schedule
    committed two batches, or no fault struck. A non-transactional topology does not fail: how often it was
    not exact is shown.
    """
    from txstream.plugins.proof.simulation.program import Program
    from txstream.plugins.proof.simulation.runs import run_schedules
    from txstream.plugins.proof.simulation.world import STEPS

    if target is None and rows is not None:
        raise UsageError("--rows are for a topology of yours; name it, as MODULE:FACTORY")
    topology = load_topology(target or _WORD_COUNT, parameter or [])
    with user_code_prints_to_stderr():
        given = _made_lines() if target is None else _read(topology.spout.source, rows, partition_by)
        program = Program(topology, given)
    if replay is not None:
        return _replay(cli, program, replay)
    with user_code_prints_to_stderr():
        report = run_schedules(
            program,
            schedules=schedules,
            seed=seed,
            jobs=jobs,
            steps=steps or STEPS,
            exhaustive=exhaustive,
            progress=lambda report: cli.say(f"{report.schedules:,} schedules") if cli.verbose else None,
        )
    if report.failure is not None:
        _save(program, report.failure, save)
    _tell(cli, report, save)
    return 0 if report.exact or report.inexact else 1


def _made_lines() -> list[dict[str, str]]:
    return [{"value": line} for line in _LINES]


def _read(
    source: PartitionedSpout[Any], file: Path | None, partition_by: str | None
) -> Sequence[Any] | Mapping[str, Sequence[Any]] | None:
    """Return the rows of a file of JSON lines, None without a file. Raises UsageError."""
    if file is None:
        return None
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--rows {file} cannot be read: {error}") from error
    rows = [_row(source, file, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    return rows if partition_by is None else _partitioned(rows, partition_by)


def _row(source: PartitionedSpout[Any], file: Path, number: int, line: str) -> Any:
    """Return a line as the source would emit it. Where it reads JSON, a line is a record's value, and its
    place in the file the record's."""
    from txstream.api.schema import parse_schema
    from txstream.api.spouts import PartitionedSpout
    from txstream.spouts.formats.value_formats import JsonFormat

    record = DeadLetter(file.name, file.name, 0, number, None, None, line.encode(), None, "", "", "", "")
    try:
        found = json.loads(line)
        if isinstance(found, list):
            return tuple(found)
        if isinstance(getattr(source, "value_schema", None), JsonFormat):
            return source.decoded([record]).to_pylist()[0]
        if isinstance(found, dict) and found.keys() <= {*parse_schema(source.output).names}:
            return PartitionedSpout.decoded(source, [record]).to_pylist()[0]
    except ValueError as error:
        raise UsageError(f"{file}, line {number} is no JSON: {error}") from error
    except DecodeError as error:
        raise UsageError(f"{file}, line {number} does not fit what the source emits: {error}") from error
    return found


def _partitioned(rows: Iterable[Any], field: str) -> dict[str, list[Any]]:
    from txstream.api.stable_hash import task_of
    from txstream.plugins.proof.simulation.source import PARTITIONS

    found: dict[str, list[Any]] = {}
    for row in rows:
        if not isinstance(row, dict) or field not in row:
            raise UsageError(f"--partition-by {field}: row {row!r:.100} has no such field")
        found.setdefault(f"p{task_of([row[field]], PARTITIONS) + 1}", []).append(row)
    return found


def _replay(cli: Cli, program: Program, file: Path) -> int:
    from txstream.plugins.proof.simulation.runs import replay
    from txstream.plugins.proof.simulation.schedules import Schedule

    steps: list[str] = []
    schedule = Schedule.load(file, program.topology.id)
    with user_code_prints_to_stderr():
        wrong = replay(program, schedule, steps.append)
    if cli.as_json:
        cli.print_json(
            {
                "exact": wrong is None,
                "error": None if wrong is None else type(wrong).__name__,
                "message": None if wrong is None else str(wrong),
                "steps": steps,
            }
        )
    else:
        for step in steps:
            cli.print(step)
        cli.print("exact: yes" if wrong is None else f"exact: no; {type(wrong).__name__}: {wrong}")
    return 0 if wrong is None else 1


def _save(program: Program, failure: Broken, file: Path) -> None:
    document = failure.schedule.to_document(program.topology.id, f"{failure.kind}: {failure.error}")
    try:
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--save {file} cannot be written: {error.strerror}; {failure}") from error


def _tell(cli: Cli, report: SimulationReport, saved: Path) -> None:
    failure = report.failure
    if cli.as_json:
        document = report.to_document()
        if failure is not None:
            document["failure"]["saved"] = str(saved)
        cli.print_json(document)
        return
    if report.not_deterministic is not None:
        cli.print(f"{report.not_deterministic}\nexact: no")
        return
    for line in report.lines():
        cli.print(line)
    if failure is not None:
        cli.print(f"\n{failure}\n\nShrunk, this is what happens:\n{failure.told}\n")
        cli.print(
            f"wrote {saved}; `txstream simulate --replay {saved}` with the same topology shows each step"
        )
    if report.nothing_shown is not None:
        cli.print(f"nothing was shown: {report.nothing_shown}")
    else:
        cli.print(f"exact: {'yes' if report.exact else 'no'}")
