"""`txstream dead-letters list | show | export | retry | drop`: the records that batches left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstream.cli.context import Cli, ask
from txstream.cli.databases import warn_of_missing
from txstream.cli.inspection import moment_of, shown_time
from txstream.cli.operate import Later, Timeout, ask as request, opened, print_answer
from txstream.cli.options import Id, command
from txstream.cli.tables import escaped, quoted
from txstream.core.errors import TxstreamError, UsageError
from txstream.core.wording import counted, storable
from txstream.inspect.databases import open_zookeeper
from txstream.inspect.json_documents import document

if TYPE_CHECKING:
    import pyarrow as pa

    from txstream.inspect.records import MissingDatabase

dead_letters = typer.Typer(help="Look at records that batches left out.", no_args_is_help=True)

IN_JSON = ("txid", "topic", "partition", "offset", "component", "exception", "message", "status")
"""What `list --json` has of each. Scripts rely on exactly these names."""

_LONGEST_SHOWN = 2_000
_LONGEST_LISTED = 120

Component = Annotated[
    list[str] | None,
    typer.Option("--component", metavar="NAME", help="Only what failed in it; may be given again."),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Committed in the last 36h (or s, m, d), or since a time."),
]


class NoSuchLetterError(TxstreamError):
    """There is no such dead letter: an answer, as that of `state get` without a row, and no wrong usage."""


def register(app: typer.Typer) -> None:
    app.add_typer(dead_letters, name="dead-letters")
    # `retry` looks into no database, the driver does; but what is typed for `list` is typed for it, too.
    functions: Mapping[str, Callable[..., int | None]] = {
        "list": list_letters,
        "show": show,
        "export": export,
        "retry": retry,
        "drop": drop,
    }
    for name, function in functions.items():
        command(dead_letters, name, state_databases=True)(function)


def list_letters(cli: Cli, topology_id: Id, component: Component = None, since: Since = None) -> None:
    """List a topology's dead letters. By component and exception, with the newest of each."""
    found = _found(cli, topology_id, component, since, whole=False)
    if cli.as_json:
        rows = found.select(IN_JSON).to_pylist()
        cli.print_json({"dead_letters": rows})
        return
    if not found.num_rows:
        is_part = component is not None or since is not None
        cli.say(f"{topology_id} has no {'such ' if is_part else ''}dead letter")
        return
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in found.to_pylist():
        groups.setdefault((row["component"], row["exception"]), []).append(row)
    cli.print_table(
        ["component", "exception", ">dead", ">retried", "newest", "?when", "message"],
        [
            [
                of,
                exception,
                dead := sum(row["status"] == "dead" for row in rows),
                len(rows) - dead,
                rows[-1]["place"],
                shown_time(rows[-1]["when"]),
                quoted(storable(rows[-1]["message"], _LONGEST_LISTED)),
            ]
            for (of, exception), rows in sorted(groups.items())
        ],
    )


def show(
    cli: Cli,
    topology_id: Id,
    partition: Annotated[
        str, typer.Argument(metavar="PARTITION", help="As `list` shows it before the @: lines/0, or only 0.")
    ],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", help="Its offset in the partition.")],
) -> None:
    """Show one dead letter in full. That is the record itself, and the traceback."""
    found = _found(cli, topology_id, None, None, whole=True).to_pylist()
    here = [row for row in found if row["offset"] == offset and partition in _names(row)]
    places = {row["place"] for row in here}
    if not here:
        raise NoSuchLetterError(
            f"topology {topology_id!r} has no dead letter of {partition} at offset {offset}; "
            f"`txstream dead-letters list {topology_id} --json` has all"
        )
    if len(places) > 1:
        raise UsageError(f"there are several: {', '.join(sorted(places))}; give the whole PARTITION")
    newest = max(here, key=lambda row: row["when"])
    if cli.as_json:
        cli.print_json(document(newest))
        return
    headers = json.loads(newest["headers"] or b"[]")
    cli.print_pairs(
        {
            "record": f"{newest['place']} of {topology_id}",
            "status": f"{newest['status']}, left out by txid {newest['txid']}, {shown_time(newest['when'])}",
            "key": _shown_bytes(newest["key"]),
            "value": _shown_bytes(newest["value"]),
            **({"headers": escaped(json.dumps(headers))} if headers else {}),
            "component": escaped(newest["component"]),
            "error": escaped(_error(newest)),
        }
    )
    for line in newest["traceback"].splitlines():
        cli.print(escaped(line))


def _error(row: Mapping[str, Any]) -> str:
    """Return exception and message. Of a bolt's error the message begins with the exception."""
    exception, message = row["exception"], row["message"]
    return str(message if message.startswith(f"{exception}:") else f"{exception}: {message}")


def export(
    cli: Cli,
    topology_id: Id,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="FILE.parquet, or FILE.jsonl (bytes as hexadecimal)."),
    ],
    component: Component = None,
    since: Since = None,
) -> None:
    """Write a topology's dead letters to a file."""
    if out.suffix not in (".parquet", ".jsonl"):
        raise UsageError(f"--out {out} must end with .parquet or .jsonl")
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {out.parent}")
    found = _found(cli, topology_id, component, since, whole=True)
    if out.suffix == ".parquet":
        import pyarrow.parquet as pq

        pq.write_table(found, out)
    else:
        lines = (json.dumps(document(row), ensure_ascii=False) for row in found.to_pylist())
        out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if cli.as_json:
        cli.print_json({"path": str(out), "dead_letters": found.num_rows})
    else:
        cli.print(f"wrote {counted(found.num_rows, 'dead letter')} to {out}")


def retry(
    cli: Cli,
    topology_id: Id,
    component: Component = None,
    timeout: Timeout = 30.0,
    later: Later = False,
) -> None:
    """Process dead letters again, with the code that runs now. What fails again stays."""
    body = {} if component is None else {"components": component}
    with opened(cli, topology_id) as zookeeper:
        request_id, answer = request(zookeeper, topology_id, "retry", body, timeout, later=later)
    line = "retries its dead letters" if answer is not None else "is to retry its dead letters"
    print_answer(cli, topology_id, request_id, answer, answer or {}, line)


def drop(
    cli: Cli,
    topology_id: Id,
    component: Component = None,
    since: Since = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete dead letters. Their records are in no state, and from then on nowhere else."""
    from txstream.core.dead_letters import LetterKey
    from txstream.inspect.databases import topology_databases
    from txstream.inspect.left_out import is_asked_for, refuse_needed
    from txstream.inspect.snapshot import take

    moment = None if since is None else moment_of(since)
    settings = cli.resolve()
    with topology_databases(settings, topology_id) as databases:
        chosen = {
            database.display_url: [
                one
                for one in database.dead_letters(topology_id, whole=False)
                if is_asked_for(one, component, moment)
            ]
            for database in databases.opened
        }
        letters = [one for some in chosen.values() for one in some]
        if letters:
            number = counted(len(letters), "dead letter")
            ask(f"Delete {number} of {topology_id}, with their records?", yes=yes)
            with open_zookeeper(settings) as zookeeper:
                store = partial(zookeeper.progress, topology_id)
                refuse_needed(letters, take(topology_id, store, databases.opened))
        dropped = 0
        for database in databases.opened:
            keys = [LetterKey(one.txid, one.place) for one in chosen[database.display_url]]
            dropped += database.drop_dead_letters(topology_id, keys) if keys else 0
    if cli.as_json:
        cli.print_json({"topology": topology_id, "dropped": dropped})
    else:
        cli.print(f"deleted {counted(dropped, 'dead letter')} of {topology_id}")


def _found(
    cli: Cli, topology_id: str, component: list[str] | None, since: str | None, *, whole: bool
) -> pa.Table:
    moment = None if since is None else moment_of(since)
    settings = cli.resolve()
    from txstream import inspect

    missing: list[MissingDatabase] = []
    found = inspect.dead_letters(
        topology_id, settings, component=component, since=moment, whole=whole, missing=missing
    )
    warn_of_missing(missing)
    return found


def _names(row: dict[str, Any]) -> set[str]:
    """Return how a person may call the partition of a dead letter."""
    named = {row["place"].rpartition("@")[0]}
    if row["partition"] is not None:
        named |= {str(row["partition"]), f"{row['topic']}/{row['partition']}"}
    return named


def _shown_bytes(value: bytes | None) -> str:
    """Return bytes as text where they are text, else as hexadecimal; long ones are cut."""
    if value is None:
        return "null"
    try:
        text = escaped(value[: _LONGEST_SHOWN * 4].decode())
    except UnicodeDecodeError:
        text = f"hex {value[:_LONGEST_SHOWN].hex()}"
    more = "" if len(text) <= _LONGEST_SHOWN else f"... ({counted(len(value), 'byte')}; `export` has all)"
    return text[:_LONGEST_SHOWN] + more
