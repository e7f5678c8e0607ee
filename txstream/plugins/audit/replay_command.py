"""`txstream replay`: run committed batches again, dry, and show what came of it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstream.cli.code import Target, find_code, is_code_known, running, under_id
from txstream.cli.context import Cli
from txstream.cli.factory import load_topology
from txstream.cli.options import Id, command
from txstream.cli.tables import quoted
from txstream.core.errors import TxstreamError, UsageError
from txstream.core.wording import counted
from txstream.inspect.json_documents import document, plain_value
from txstream.plugins.audit.junit import by_words, write_error, write_replay

if TYPE_CHECKING:
    import pyarrow as pa

    from txstream.api.topology import Topology
    from txstream.plugins.audit.replaying import Replay, TableReplay

_SHOWN_TUPLES = 20
_RESULTS = {True: "same", False: "different", None: "not compared"}


def register(app: typer.Typer) -> None:
    command(app, "replay", state_databases=True)(replay)


def replay(
    cli: Cli,
    topology_id: Id,
    txids: Annotated[str, typer.Argument(metavar="TXID[..TXID]", help="A committed txid, or a range.")],
    target: Target = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "-p", "--parameter", metavar="NAME=VALUE", help="An argument of the FACTORY that is given."
        ),
    ] = None,
    code: Annotated[
        str | None,
        typer.Option(
            "--code", metavar="MODULE:FACTORY", help="Other code, to be compared with production's."
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write the result as JUnit XML, for CI.")
    ] = None,
    component: Annotated[
        str | None, typer.Option("--component", metavar="NAME", help="Show the tuples that it emitted.")
    ] = None,
    stream: Annotated[
        str | None, typer.Option("--stream", metavar="NAME", help="With --component: which of its streams.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="With --component: save them, as FILE.parquet or FILE.jsonl."
        ),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="TABLE", help="Write the deltas into a new table of this name."),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", metavar="TABLE", help="With --into: of which state table.")
    ] = None,
    rows: Annotated[
        int,
        typer.Option(
            "--rows", "-n", metavar="N", help="At most so many rows of a table that differs.", min=0
        ),
    ] = 20,
) -> int:
    """Run committed batches again, dry, and compare. Nothing of the topology is touched; exit status 1 when
    they would add something else today, or when nothing was shown: no row could be compared. With --code,
    other code runs, and what it would change in each key is summed up, the largest differences first. It
    runs in this process; with --master, on Spark."""
    first, last = _range(txids)
    _check_out(component, stream, out)
    if table is not None and into is None:
        raise UsageError("--table says whose deltas --into TABLE takes; give that, too")
    from txstream import inspect

    made, production, module = _codes(cli, topology_id, target, code, parameter)
    with running(cli, module) as (settings, on_spark), _telling(junit, topology_id):
        found = inspect.replay(
            made,
            first,
            settings,
            last=last,
            component=component,
            stream=stream,
            into=into,
            table=table,
            changes=rows,
            production=production,
            on_spark=on_spark,
        )
    if junit is not None:
        write_replay(junit, found)
    tuples = found.tuples
    if tuples is not None and out is not None:
        _save(out, tuples)
        cli.say(f"wrote {counted(tuples.num_rows, 'tuple')} to {out}")
        tuples = None
    if cli.as_json:
        cli.print_json(_replay_document(found, tuples))
        return 0 if found.same else 1
    if tuples is not None:
        _print_tuples(cli, tuples)
    _print_replay(cli, found)
    if into is not None:
        cli.say(f"wrote the deltas to the new table {into}; drop it when you have seen them")
    return 0 if found.same else 1


def _codes(
    cli: Cli, topology_id: str, target: str | None, code: str | None, parameter: Sequence[str] | None
) -> tuple[Topology, Topology | None, str]:
    """Return the code to run, that of production if it is another one and known, and the MODULE:FACTORY of
    the first."""
    if code is None:
        made, module = find_code(cli, topology_id, target, parameter)
        return made, None, module
    production = None
    if target is not None or is_code_known(cli.settings, topology_id):
        # Made first: other code is often production's with something replaced.
        production, module = find_code(cli, topology_id, target, parameter if target else None)
        production = None if module == code else production
    return under_id(cli.settings, load_topology(code, parameter or []), topology_id), production, code


@contextlib.contextmanager
def _telling(junit: Path | None, topology_id: str) -> Iterator[None]:
    """Have a replay that fails told in the file, too."""
    try:
        yield
    except TxstreamError as error:
        if junit is not None:
            write_error(junit, topology_id, error)
        raise


def _range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18}))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last:
        raise UsageError(f"{text!r} is neither a txid nor a range of txids; write for example 7 or 7..9")
    return first, last


def _check_out(component: str | None, stream: str | None, out: Path | None) -> None:
    if component is None and (out is not None or stream is not None):
        raise UsageError("--out and --stream are for the tuples of a component: give --component NAME, too")
    if out is not None and out.suffix not in (".parquet", ".jsonl"):
        raise UsageError(f"--out {out}: name a file that ends in .parquet or .jsonl")


def _replay_document(found: Replay, tuples: pa.Table | None) -> dict[str, Any]:
    """Return a replay as JSON values: `same` for all of it, `batches` with what was read, and `tables` with
    one entry for each txid and table."""
    written: dict[str, Any] = {
        "topology": found.topology,
        "same": found.same,
        "shown": found.shown,
        "batches": [
            {
                "txid": b.txid,
                "attempt": b.attempt,
                "records": b.records,
                "records_read": b.records_read,
                "differs": list(b.differs),
            }
            for b in found.batches
        ],
        "tables": document(found.tables),
        "differing": found.differing,
        "differences": document(found.differences),
        "lookups": found.lookups,
    }
    if found.into is not None:
        written["into"] = found.into
    if tuples is not None:
        written["tuples"] = document(tuples.to_pylist())
    return written


def _print_replay(cli: Cli, found: Replay) -> None:
    records = {batch.txid: batch for batch in found.batches}
    cli.print_table(
        [">txid", "table", "replay", ">records", ">rows", "?>rows then", "?differs in"],
        [
            [
                one.txid,
                one.table,
                _RESULTS[one.same],
                records[one.txid].records,
                one.rows,
                one.rows_written,
                ", ".join(one.differs) or None,
            ]
            for one in found.tables
        ],
    )
    for batch in found.batches:
        for words in batch.differs:
            cli.say(f"txid {batch.txid} was made from something else: {words}")
        if batch.records != batch.records_read:
            cli.say(
                f"note: txid {batch.txid} had {counted(batch.records_read, 'record')} and its ranges have "
                f"{batch.records:,} now: the log was compacted, or the source gives others"
            )
    for words in found.notes:
        cli.say(f"note: {words}")
    for note in dict.fromkeys(f"{one.table}: {one.note}" for one in found.tables if one.note):
        cli.say(f"note: {note}")
    for one in found.tables:
        if one.same is False:
            _print_changes(cli, one)
    _print_differences(cli, found)
    if not any(one.same is not None for one in found.tables):
        cli.say("nothing was shown: nothing could be compared")
    elif not found.shown:
        cli.say("nothing was shown: these batches give no table a row")


def _print_changes(cli: Cli, one: TableReplay) -> None:
    if one.changes:
        keys = list(one.changes[0].key)
        sample = one.changes[0].written or one.changes[0].replayed or {}
        moments = ("before", "written", "replayed")
        cli.print_table(
            [*keys, *(f">{name} {moment}" for name in sample for moment in moments)],
            [
                [
                    *(quoted(plain_value(change.key[name])) for name in keys),
                    *(
                        plain_value((getattr(change, moment) or {}).get(name))
                        for name in sample
                        for moment in moments
                    ),
                ]
                for change in one.changes
            ],
        )
    line = f"txid {one.txid} of {one.table} differs; {counted(len(one.changes), 'row')} shown"
    if one.untold:
        line += f", {one.untold:,} cannot be told: changed since, expired, or earlier values are not kept"
    cli.say(line)


def _print_differences(cli: Cli, found: Replay) -> None:
    if not found.differing or len(found.batches) < 2:
        return  # of one batch they are the changes
    cli.print_table(
        ["table", "key", "?only", ">batches", "replayed minus written"],
        [
            [
                one.table,
                ", ".join(str(quoted(plain_value(value))) for value in one.key.values()),
                one.only,
                len(one.txids),
                by_words(one),
            ]
            for one in found.differences
        ],
    )
    cli.say(f"{counted(found.differing, 'key')} would differ; {len(found.differences):,} shown")


def _print_tuples(cli: Cli, tuples: pa.Table) -> None:
    shown = tuples.slice(0, _SHOWN_TUPLES)
    import pyarrow as pa

    numbers = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in tuples.schema.types]
    names = [
        f">{name}" if number else name for name, number in zip(tuples.schema.names, numbers, strict=True)
    ]
    rows = zip(*(column.to_pylist() for column in shown.columns), strict=True)
    cli.print_table(names, [[quoted(plain_value(value)) for value in row] for row in rows])
    if tuples.num_rows > shown.num_rows:
        cli.say(f"{tuples.num_rows - shown.num_rows:,} more tuples; --out FILE and --json have all of them")


def _save(out: Path, tuples: pa.Table) -> None:
    try:
        if out.suffix == ".parquet":
            import pyarrow.parquet as pq

            pq.write_table(tuples, out)
        else:
            with out.open("w", encoding="utf-8") as file:
                for row in tuples.to_pylist():
                    file.write(f"{json.dumps(document(row), ensure_ascii=False)}\n")
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror or error}") from error
