"""Descriptions of a topology: a text, and the same as JSON values for scripts.

Neither holds the values of the topology's settings or a database's URL: both may contain passwords.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txstream.api.bolts import Bolt, DataFrameBolt, StateCommitter
from txstream.api.groupings import Grouping, describe_grouping
from txstream.api.schema import format_schema, format_type
from txstream.api.spouts import SourceSpout
from txstream.api.tracked import Spout
from txstream.api.tuples import DEFAULT_STREAM
from txstream.core.semantics import Semantics
from txstream.core.wording import counted, printable

if TYPE_CHECKING:
    from txstream.api.topology import Component, StateUse, Topology

_HEADER = ("component", "class", "slots", "tasks", "phase")
_RIGHT = (False, False, True, True, False)
_LINE_CHARACTERS = 100


def describe_topology(topology: Topology) -> str:
    """Return the text of `Topology.describe`."""
    rows = [_HEADER, *(_row(component) for component in topology.components)]
    details = [list(_details(topology, component)) for component in topology.components]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    names = max((len(name) for lines in details for _, name, _ in lines), default=0)
    text = [_title(topology), *_limits(topology), "", _aligned(rows[0], widths)]
    for row, lines in zip(rows[1:], details, strict=True):
        text.append(_aligned(row, widths))
        for verb, name, parts in lines:
            text += _wrapped(f"    {verb:<6}  {name:<{names}}  ", parts)
    return "\n".join(text)


def topology_document(topology: Topology) -> dict[str, Any]:
    """Return the value of `Topology.to_document`."""
    return {
        "topology": topology.id,
        "semantics": topology.kind,
        "max_spout_pending": topology.max_spout_pending,
        "message_timeout_seconds": topology.message_timeout_seconds,
        "max_attempts": topology.max_attempts,
        "workers": topology.workers,
        "settings": sorted(topology.settings),
        "components": [_component_document(topology, component) for component in topology.components],
    }


def describe_instance(instance: SourceSpout[Any] | Spout | Bolt) -> str:
    """Return what a component is: its class, or the function or source behind it."""
    if isinstance(instance, SourceSpout):
        return f"{type(instance).__name__}({type(instance.source).__name__})"
    return getattr(instance, "__name__", type(instance).__name__)


def state_semantics(topology: Topology, bolt: StateCommitter) -> Semantics:
    """Return the semantics that was chosen for a state when the topology was built."""
    return next(semantics for committer, semantics in topology.states if committer is bolt)


# --- the text ------------------------------------------------------------------------------------------


def _title(topology: Topology) -> str:
    return f"topology {topology.id} ({topology.kind})"


def _limits(topology: Topology) -> Iterator[str]:
    yield (
        f"{topology.at_once}, {topology.message_timeout_seconds:g} s for {topology.unit}, "
        f"{counted(topology.max_attempts, 'attempt')} before a bug ends the run"
    )
    if topology.workers is not None:
        yield f"{counted(topology.workers, 'worker')} asked for"
    if topology.settings:
        yield f"settings: {', '.join(map(printable, sorted(topology.settings)))}"


def _row(component: Component) -> tuple[str, ...]:
    phase = f"{component.phase}, committer" if component.is_committer else str(component.phase)
    name = printable(describe_instance(component.instance))
    return (printable(component.id), name, str(component.parallelism), str(component.tasks), phase)


def _details(topology: Topology, component: Component) -> Iterator[tuple[str, str, list[str]]]:
    """Yield what a component reads, emits and stores: a verb, a stream or table, and details in parts."""
    for grouping in component.inputs:
        yield "reads", printable(_stream_of(grouping)), [describe_grouping(grouping)]
    for stream, schema in component.streams.items():
        columns = _columns(schema)
        if stream in component.direct_streams:
            columns[-1] += " (direct)"
        yield "emits", printable(stream), columns
    bolt = component.instance
    if isinstance(bolt, StateCommitter):
        stored = _columns(bolt.state.shown_schema)
        if bolt.state.on_conflict is None:
            stored = [
                f"{column} = {printable(str(bolt.reducers[name]))}"
                for name, column in zip(bolt.state.value_names, stored, strict=True)
            ]
        key = ", ".join(_columns(bolt.state.key_schema))
        rows = "" if bolt.state.on_conflict is None else f" of rows, on conflict {bolt.state.on_conflict}"
        rows += "" if bolt.state.removed_by is None else f", removed by {printable(bolt.state.removed_by)}"
        rows += "" if bolt.state.sequence_by is None else f", in sequence of {bolt.state.sequence_by}"
        stored[-1] += f" for each {key} ({state_semantics(topology, bolt)} table{rows})"
        yield "stores", printable(bolt.state.table), stored
    for use in _map_states(topology, component):
        columns = _columns(use.state.value_schema)
        key = ", ".join(_columns(use.state.key_schema))
        columns[-1] += f" for each {key} ({use.semantics} table, state {printable(use.name)})"
        yield "stores", printable(use.state.table), columns


def _map_states(topology: Topology, component: Component) -> list[StateUse]:
    return [use for use in topology.map_states if use.component == component.id]


def _columns(schema: pa.Schema) -> list[str]:
    return [printable(format_schema(pa.schema([column]))) for column in schema]


def _stream_of(grouping: Grouping) -> str:
    if grouping.stream == DEFAULT_STREAM:
        return grouping.component
    return f"{grouping.component}.{grouping.stream}"


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, _RIGHT, strict=True)
    ]
    return "  ".join(aligned).rstrip()


def _wrapped(start: str, parts: Sequence[str]) -> Iterator[str]:
    """Yield the parts after `start`, with commas, on as many lines as they need; no part is cut."""
    line = start + parts[0]
    for part in parts[1:]:
        if len(line) + len(", ") + len(part) < _LINE_CHARACTERS:
            line += f", {part}"
            continue
        yield f"{line},"
        line = " " * len(start) + part
    yield line


# --- the document --------------------------------------------------------------------------------------


def _component_document(topology: Topology, component: Component) -> dict[str, Any]:
    bolt = component.instance
    return {
        "id": component.id,
        "kind": _kind(bolt),
        "class": describe_instance(bolt),
        "slots": component.parallelism,
        "tasks": component.tasks,
        "phase": str(component.phase),
        "committer": component.is_committer,
        "inputs": [
            {
                "component": grouping.component,
                "stream": grouping.stream,
                "grouping": str(grouping.kind),
                "fields": list(grouping.fields),
            }
            for grouping in component.inputs
        ],
        "streams": [
            {"stream": stream, "direct": stream in component.direct_streams, "fields": _fields(schema)}
            for stream, schema in component.streams.items()
        ],
        "state": _state_document(topology, bolt) if isinstance(bolt, StateCommitter) else None,
        "states": [_use_document(use) for use in _map_states(topology, component)],
    }


def _kind(instance: SourceSpout[Any] | Spout | Bolt) -> str:
    if isinstance(instance, (SourceSpout, Spout)):
        return "spout"
    if isinstance(instance, StateCommitter):
        return "state"
    return "dataframe" if isinstance(instance, DataFrameBolt) else "bolt"


def _fields(schema: pa.Schema) -> list[dict[str, str]]:
    return [{"name": column.name, "type": format_type(column.type)} for column in schema]


def _state_document(topology: Topology, bolt: StateCommitter) -> dict[str, Any]:
    if bolt.state.on_conflict is not None:
        return {
            "table": bolt.state.table,
            "semantics": str(state_semantics(topology, bolt)),
            "on_conflict": bolt.state.on_conflict,
            **{
                name: rule
                for name in ("removed_by", "sequence_by")
                if (rule := getattr(bolt.state, name)) is not None
            },
            "key": _fields(bolt.state.key_schema),
            "value": _fields(bolt.state.shown_schema),
        }
    return {
        "table": bolt.state.table,
        "semantics": str(state_semantics(topology, bolt)),
        "key": _fields(bolt.state.key_schema),
        "value": [
            {**column, "reducer": str(bolt.reducers[column["name"]])}
            for column in _fields(bolt.state.value_schema)
        ],
    }


def _use_document(use: StateUse) -> dict[str, Any]:
    """Return the document of a state that a committer reads and writes itself."""
    return {
        "name": use.name,
        "table": use.state.table,
        "semantics": str(use.semantics),
        "key": _fields(use.state.key_schema),
        "value": _fields(use.state.value_schema),
        "cache_rows": use.state.cache_rows,
    }
