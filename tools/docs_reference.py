"""The parts of docs/reference/ that are made from the code: API, commands, metrics, tables, znodes."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import txstream
import txstream.inspect
import txstream.testing
from public_api import FURTHER
from tracked_wheel import ROOT

API_PAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "errors": ("txstream.core.errors", "txstream.api.bolt_checks"),
    "sources": ("txstream.api.spouts", "txstream.spouts."),
    "states": (
        *("txstream.api.state", "txstream.api.map_state", "txstream.api.reducers", "txstream.core.semantics"),
        *("txstream.bolts.sql", "txstream.state."),
    ),
    "running": (
        "txstream.engine.run",
        "txstream.engine.spark.session",
        "txstream.engine.loop.report",
        "txstream.settings",
    ),
    "topologies": ("txstream.",),
}
"""Page -> the beginnings of the modules whose names it has; the first page that fits has the name."""


def api(page: str) -> str:
    """Return the public names of `txstream` that belong to a page, documented from their docstrings."""
    names = [name for name in txstream.__all__ if name != "__version__" and _page_of(name) == page]
    found = [_documented("txstream", names)]
    found += [_documented(home, [name]) for home, name in FURTHER if _page_of_module(home) == page]
    return "\n\n".join(found)


def module(name: str) -> str:
    """Return the public names of a module, documented from their docstrings."""
    return _documented(name, list(importlib.import_module(name).__all__))


def _page_of(name: str) -> str:
    return _page_of_module(str(txstream._HOME_OF[name]))


def _page_of_module(home: str) -> str:
    for page, beginnings in API_PAGES.items():
        if any(home == one or (one.endswith(".") and home.startswith(one)) for one in beginnings):
            return page
    raise LookupError(f"no page of the reference takes {home}")


def _documented(module_name: str, names: list[str]) -> str:
    found = importlib.import_module(module_name)
    lines = ["```{eval-rst}", f".. currentmodule:: {module_name}", ""]
    for name in names:
        thing = getattr(found, name)
        if inspect.isclass(thing) and issubclass(thing, BaseException):
            lines += [f".. autoexception:: {name}", "   :show-inheritance:", ""]
        elif inspect.isclass(thing):
            lines += [f".. autoclass:: {name}", "   :members:", "   :show-inheritance:", ""]
        elif callable(thing):
            lines += [f".. autofunction:: {name}", ""]
        else:
            lines += [f".. autodata:: {name}", ""]
    return "\n".join([*lines, "```"])


# --- commands ----------------------------------------------------------------------------------------------

_SHARED: Final = frozenset(("debug", "quiet", "verbose", "json_output", "data_dir", "help"))


def commands() -> str:
    """Return each command with its usage, arguments and options."""
    from txstream.cli.main import parser

    root = parser()
    parts: list[str] = []
    for path, command in _each_command(root, ("txstream",)):
        parts += _command(path, command, root)
    return "\n".join(parts)


def _each_command(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _each_command(command, (*path, name))
        else:
            yield (*path, name), command


def _command(path: tuple[str, ...], command: Any, root: Any) -> list[str]:
    context = command.make_context(path[-1], [], resilient_parsing=True, **root.context_settings)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"## {' '.join(path)}", "", _paragraphs(command.help or ""), ""]
    lines += ["```text", f"{' '.join(path)} {usage}", "```", ""]
    rows = [
        row for one in command.get_params(context) if one.name not in _SHARED and (row := _row(one, context))
    ]
    if rows:
        lines += ["| | |", "|---|---|", *rows, ""]
    common = [
        one.opts[0] for one in command.get_params(context) if one.name in _SHARED and one.name != "help"
    ]
    return [*lines, f"Also {', '.join(f'`{flag}`' for flag in common)}.", ""]


def _paragraphs(text: str) -> str:
    return inspect.cleandoc(text)


def _row(parameter: Any, context: Any) -> str | None:
    record = parameter.get_help_record(context)
    if record is None:
        return None
    shown, told = (" ".join(part.split()).replace("|", "\\|") for part in record)
    return f"| `{shown}` | {_plain(told)} |"


def _plain(text: str) -> str:
    """Return a help text as Markdown that shows it unchanged."""
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("[", "\\[")


# --- what is stored ----------------------------------------------------------------------------------------


def metrics() -> str:
    """Return the table of all metrics."""
    from txstream.plugins.monitoring.catalog import CATALOG

    rows = [
        f"| `{name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.help} |"
        for name, one in CATALOG.items()
    ]
    return "\n".join(["| metric | kind | labels | |", "|---|---|---|---|", *rows])


TABLES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "txstream_fence": (
        "One row for each topology that writes to this database.",
        {
            "topology": "the topology's id",
            "uuid": "the topology's life: it is a new one after `delete`",
            "attempt": "the newest attempt that was let in; older ones write nothing. It only grows",
            "identity": "what `recover` rebuilds ZooKeeper's part from, as JSON",
        },
    ),
    "txstream_batch": (
        "The ledger: one row for each batch, written in the transaction of its results.",
        {
            "topology": "the topology's id",
            "uuid": "the topology's life",
            "txid": "the batch's number, 1, 2, ...",
            "attempt": "the attempt that committed it: the leader's epoch times 2^32, plus a sequence",
            "semantics": "opaque, transactional or non-transactional",
            "status": "committed, or committing while executors write",
            "metas": "what it held, as JSON: `partitions`, `carried`, `unavailable`, `excluded`, `retried`, "
            "`horizons`",
            "tuples": "how many tuples the spout emitted",
            "keys": "how many rows were written, over all tables of this database",
            "planned_at": "when it was planned (UTC)",
            "processed_at": "when all bolts were done",
            "committed_at": "when it was committed; null while it is committing",
            "error": "the last error of its failed attempts",
            "details": "as JSON: failed attempts, timings in seconds (those of its commit are in the next "
            "row, as timings_before), waits, digests, the path of its commit",
        },
    ),
    "txstream_table": (
        "Which topology owns which state table.",
        {
            "table_name": "the state table",
            "topology": "the topology's id",
            "uuid": "the topology's life",
            "declaration": "key, value columns and semantics, as JSON",
            "created_at": "when txstream created it (UTC)",
        },
    ),
    "txstream_dead_letter": (
        "Records that batches left out because they fail by themselves.",
        {
            "topology": "the topology's id",
            "uuid": "the topology's life",
            "txid": "the batch that left it out",
            "place": "the record's partition and position, as in `orders/3@17`",
            "attempt": "the attempt that committed that batch",
            "status": "`dead`, or `retried in txid N`",
            "when": "when that batch was committed (UTC)",
            "topic": "Kafka's topic; null for other sources, as the next three",
            "partition": "Kafka's partition",
            "offset": "Kafka's offset, or the source's position",
            "timestamp": "milliseconds since 1970",
            "component": "where it failed",
            "exception": "the class of what was raised there",
            "message": "its message, with the place in the code",
            "traceback": "the traceback of the user's code",
            "key": "the record's key, as bytes",
            "headers": "a JSON array of [name, value in base64 or null]",
            "value": "the record's value, as bytes",
        },
    ),
    "txstream_alembic_version": (
        "The revision of these tables.",
        {"version_num": "what `txstream db upgrade` brings up to date"},
    ),
}
"""What each of the framework's tables and columns means. A test compares it with the tables."""

ZNODES: Final[Mapping[str, str]] = {
    "identity": "uuid, semantics, spout, topics, tables: what may not change under one id",
    "leader/": "the election: an ephemeral, numbered node for each driver that leads or stands by",
    "epoch": "grows with each leader; checked in every write",
    "coordinator/current": "the txid to commit next, and the attempt that committed the one before",
    "coordinator/meta/TXID": "a batch's ranges; `attempt` is null for a plan, stored before it is read",
    "requests/asked": "what operators ask and nobody has answered",
    "requests/answered": "what is in force of it (slots, a pause, a stop), and the leader's newest answers",
    "assignment": "where the tasks of a recent batch ran",
    "away": "since when plans go without partitions that cannot be read; only while they do",
    "edges": "how many tuples passed between the components of that batch, and in what time",
    "ended": "the epoch of the last leader that ended well",
    "failing": "why the attempts of a batch fail",
    "failing_attempts": "what that batch holds, and its latest attempts, without messages of user code",
    "fork": "what it is a fork of; only of a fork, and there before anything else of it",
    "waiting": "what the leader waits for; only while it does",
    "trees": "how tracked tuples are doing",
    "letters_sent": "the last txid whose dead letters are all in their topic",
    "results_sent": "by table, the last txid whose rows are all where they leave for",
}


def tables() -> str:
    """Return the framework's tables with the type and meaning of each column."""
    from txstream.state.sql.framework_tables import metadata, version

    parts: list[str] = []
    for table in (*metadata.sorted_tables, version):
        about, columns = TABLES[table.name]
        parts += [f"### {table.name}", "", about, "", "| column | type | |", "|---|---|---|"]
        for column in table.columns:
            key = "**key**, " if column.primary_key else ""
            null = ", may be null" if column.nullable else ""
            parts.append(f"| `{column.name}` | {_sql_type(column)}{null} | {key}{columns[column.name]} |")
        parts.append("")
    return "\n".join(parts)


def _sql_type(column: Any) -> str:
    name = type(column.type).__visit_name__
    if name == "type_decorator":
        return "timestamp"
    if name == "string":
        return f"varchar({column.type.length})"
    return {"big_integer": "bigint", "large_binary": "bytes"}.get(name, str(name))


def znodes() -> str:
    """Return the znodes of a topology, each with what the first release stored there."""
    stored = json.loads((ROOT / "tests" / "releases" / "0.1" / "znodes.json").read_text(encoding="utf-8"))
    example = stored["transactional-orders"]
    parts: list[str] = []
    for path, about in ZNODES.items():
        parts += [f"**`{path}`**: {about}.", ""]
        text = example.get(path.replace("TXID", "4"))
        if text:
            parts += ["```json", json.dumps(_shortened(json.loads(text)), indent=1), "```", ""]
    return "\n".join(parts)


def _shortened(document: Any) -> Any:
    """Return a document with only the first element of each list of objects."""
    if isinstance(document, dict):
        return {name: _shortened(value) for name, value in document.items()}
    if isinstance(document, list) and document and isinstance(document[0], dict):
        return [_shortened(document[0])]
    return document


GENERATED: Final[Mapping[str, Callable[[], str]]] = {
    **{f"api-{page}": (lambda page=page: api(page)) for page in API_PAGES},  # type: ignore[misc]
    "module-inspect": lambda: module("txstream.inspect"),
    "module-testing": lambda: module("txstream.testing"),
    "commands": commands,
    "metrics": metrics,
    "tables": tables,
    "znodes": znodes,
}
"""Mark -> what stands there."""
