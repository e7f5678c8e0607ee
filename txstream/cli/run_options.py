"""The options of `txstream run`: what each is for, and what it makes of the topology."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txstream.cli.beside import beside
from txstream.cli.context import print_error
from txstream.cli.options import check_id
from txstream.core.errors import UsageError
from txstream.core.ledger_retention import Keep

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.engine.loop.report import RunReport

KEPT_BY_DEFAULT = str(Keep())
_CAUGHT_UP = "caught-up"

OtherId = Annotated[
    str | None,
    typer.Option("--id", metavar="ID", help="Run it under another topology id.", callback=check_id),
]
Beside = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="ID",
        help="Run it beside the original: under this id, each table as TABLE__ID.",
        callback=check_id,
    ),
]
RecordsPerSecond = Annotated[
    float | None,
    typer.Option(
        "--max-records-per-second",
        metavar="N",
        help="Read no more than that, so that others do not starve.  [default: the topology's]",
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar=_CAUGHT_UP, help="End when the log's end as of now is committed."),
]
UntilTxid = Annotated[
    int | None, typer.Option("--until-txid", metavar="N", help="End when txid N is committed.")
]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Fail, instead of standing by, when it runs elsewhere.")
]
Standby = Annotated[
    str | None,
    typer.Option(
        "--standby",
        metavar="cold|warm",
        help="What is ready while another driver leads: nothing, or all that a batch needs "
        "[env: TXSTREAM_STANDBY]",
    ),
]
SessionTimeout = Annotated[
    float,
    typer.Option(
        "--session-timeout", metavar="SECONDS", help="How soon a standby may succeed a driver that died."
    ),
]
MessageTimeout = Annotated[
    float | None,
    typer.Option(
        "--message-timeout",
        metavar="SECONDS",
        help="How long an attempt of a batch may take.  [default: the topology's]",
    ),
]
MostDeadLetters = Annotated[
    int | None,
    typer.Option(
        "--dead-letters",
        metavar="N",
        help="Keep up to N records of a batch that fail by themselves, and go on.  [default: the topology's]",
    ),
]
ResidentTasks = Annotated[
    str | None,
    typer.Option(
        "--resident-tasks",
        metavar="N|auto",
        help="How many Spark tasks stay for small batches.  [default: the topology's]",
    ),
]
KeepLedger = Annotated[
    str,
    typer.Option(
        "--keep-ledger",
        metavar="LIMITS",
        help="How long the ledger keeps batches: an age (s, m, h, d), a number, both, or all.",
    ),
]
OldKeepLedger = Annotated[str | None, typer.Option("--keep", metavar="LIMITS", hidden=True)]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="[HOST:]PORT",
        help="Serve metrics for Prometheus there; without HOST only for this machine.",
    ),
]
MetricsPartitions = Annotated[
    int,
    typer.Option(
        "--metrics-partitions",
        metavar="N",
        min=0,
        help="Show the lag of a topic with more partitions as one sum.",
    ),
]
LogFormat = Annotated[
    str,
    typer.Option(
        "--log-format",
        metavar="text|json",
        help="How lines on standard error are written: sentences, or one JSON object a line.",
    ),
]


@dataclass(frozen=True, slots=True)
class RunEnd:
    """When a run is to end: --until and --until-txid. Raises UsageError for what is neither."""

    until: str | None = None
    until_txid: int | None = None

    def __post_init__(self) -> None:
        if self.until not in (None, _CAUGHT_UP):
            raise UsageError(
                f"--until takes {_CAUGHT_UP!r}, not {self.until!r}; for a txid there is --until-txid N"
            )
        if self.until is not None and self.until_txid is not None:
            raise UsageError("give --until caught-up or --until-txid N, not both")
        if self.until_txid is not None and self.until_txid < 1:
            raise UsageError(f"--until-txid is {self.until_txid}; txids begin at 1")

    def is_reached(self, report: RunReport | None) -> bool:
        """Whether the run did what was asked. It has no report if it never came to a batch."""
        if self.until is None and self.until_txid is None:
            return True
        if report is None:
            return False
        return report.caught_up if self.until_txid is None else report.last_txid >= self.until_txid


def under_other_id(topology: Topology, topology_id: str | None, other: str | None) -> Topology:
    """Return the topology as --id and --as say. Raises UsageError."""
    if topology_id is not None and other is not None:
        raise UsageError("give --id ID, over the same tables, or --as ID, over tables of its own, not both")
    if other is not None:
        return beside(topology, other)
    return topology if topology_id is None else topology.with_id(topology_id)


def is_json(log_format: str) -> bool:
    if log_format not in ("text", "json"):
        raise UsageError(f"--log-format takes text or json, not {log_format!r}")
    return log_format == "json"


def kept_ledger(keep_ledger: str, keep: str | None) -> Keep:
    """Return what the ledger keeps. `keep` is the option under its old name, which warns."""
    if keep is None:
        return Keep.parse(keep_ledger)
    if keep_ledger != KEPT_BY_DEFAULT:
        raise UsageError("give --keep-ledger only; --keep is its old name")
    print_error("txstream: --keep of `txstream run` is called --keep-ledger now, and will be removed")
    return Keep.parse(keep)


def existing_files(files: Sequence[Path]) -> tuple[str, ...]:
    """Return the full paths of --py-files. Raises UsageError for a file that Spark cannot take."""
    for file in files:
        if not file.is_file():
            raise UsageError(f"--py-files {file}: there is no such file")
        if file.suffix not in (".py", ".zip", ".egg"):
            raise UsageError(
                f"--py-files {file}: Spark takes .py and .zip files; `txstream package` makes a zip"
            )
    return tuple(str(file.resolve()) for file in files)


def with_options(
    topology: Topology,
    *,
    message_timeout_seconds: float | None,
    most_dead_letters: int | None,
    resident_tasks: str | None,
    max_records_per_second: float | None,
) -> Topology:
    """Return the topology with what the options say in place of its own. Raises UsageError."""
    if message_timeout_seconds is not None:
        topology = _with_timeout(topology, message_timeout_seconds)
    if most_dead_letters is not None:
        topology = _with_dead_letters(topology, most_dead_letters)
    if resident_tasks is not None:
        topology = _with_residents(topology, resident_tasks)
    if max_records_per_second is not None:
        topology = _with_rate(topology, max_records_per_second)
    return topology


def _with_timeout(topology: Topology, seconds: float) -> Topology:
    if not 0 < seconds < math.inf:
        raise UsageError(f"--message-timeout is {seconds:g}; it must be a positive number of seconds")
    return replace(topology, message_timeout_seconds=seconds)


def _with_dead_letters(topology: Topology, most: int) -> Topology:
    from txstream.api.builder import check_dead_letters
    from txstream.api.topology import BATCHES
    from txstream.core.dead_letters import DeadLetters

    if most < 1:
        raise UsageError(f"--dead-letters is {most}; it must be a number above 0")
    if topology.tier != BATCHES:
        raise UsageError(f"topology {topology.id!r} is of tracked tuples, which have no --dead-letters")
    wanted = replace(topology.dead_letters or DeadLetters(), max_per_batch=most)
    return replace(topology, dead_letters=check_dead_letters(wanted, topology.semantics))


def _with_rate(topology: Topology, records: float) -> Topology:
    from txstream.api.topology import BATCHES

    if not 0 < records < math.inf:
        raise UsageError(f"--max-records-per-second is {records:g}; it must be a number above 0")
    if topology.tier != BATCHES:
        raise UsageError(
            f"topology {topology.id!r} is of tracked tuples, which have no --max-records-per-second"
        )
    return replace(topology, max_records_per_second=records)


def _with_residents(topology: Topology, tasks: str) -> Topology:
    if tasks != "auto" and not tasks.isdecimal():
        raise UsageError(f"--resident-tasks is {tasks!r}; it must be a whole number, or auto")
    return replace(topology, resident_tasks=None if tasks == "auto" else int(tasks))
