"""A built topology: components in an order in which every one comes after those it reads from.

Invariant: a `Topology` is checked. Every subscription names a stream that exists, no component is reached by
its own output, and whatever is below a committer runs in the commit phase.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow as pa

from txstream.api.bolts import Bolt, StateCommitter
from txstream.api.errors import TopologyError
from txstream.api.groupings import Grouping
from txstream.api.names import validate_topology_id
from txstream.api.schema import format_schema
from txstream.api.spouts import SourceSpout
from txstream.api.tuples import DEFAULT_STREAM
from txstream.semantics import Semantics


class Phase(StrEnum):
    """When a component's `finish_batch` runs: with its batch, beside others, or in strict txid order."""

    PROCESS = "process"
    COMMIT = "commit"


@dataclass(frozen=True)
class Component:
    """One spout or bolt of a built topology. `parallelism` is its number of slots, `tasks` of instances.

    `inputs` are its subscriptions. `below_committer` says that its tuples come in the commit phase.
    """

    id: str
    instance: SourceSpout[Any] | Bolt
    parallelism: int
    tasks: int
    streams: Mapping[str, pa.Schema]
    inputs: tuple[Grouping, ...] = ()
    is_committer: bool = False
    below_committer: bool = False
    direct_streams: frozenset[str] = frozenset()

    @property
    def phase(self) -> Phase:
        return Phase.COMMIT if self.is_committer or self.below_committer else Phase.PROCESS


@dataclass(frozen=True)
class Topology:
    """A built topology: components from the spout down. Build it with `TransactionalTopologyBuilder`."""

    id: str
    components: tuple[Component, ...]
    max_spout_pending: int
    message_timeout_seconds: float
    max_attempts: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    states: tuple[tuple[StateCommitter, Semantics], ...] = field(default=(), repr=False)

    @property
    def spout(self) -> SourceSpout[Any]:
        instance = self.components[0].instance
        if not isinstance(instance, SourceSpout):
            raise TopologyError(f"topology {self.id!r} does not begin with a spout")
        return instance

    @property
    def semantics(self) -> Semantics:
        return self.spout.semantics

    @property
    def bolts(self) -> tuple[Component, ...]:
        return self.components[1:]

    def component(self, component_id: str) -> Component:
        """The component of this id. Raises TopologyError that lists those there are."""
        for component in self.components:
            if component.id == component_id:
                return component
        raise TopologyError(
            f"topology {self.id!r} has no component {component_id!r}; it has "
            f"{', '.join(component.id for component in self.components)}"
        )

    def readers(self, component_id: str, stream: str = DEFAULT_STREAM) -> tuple[Component, ...]:
        """The bolts that subscribe to a stream."""
        return tuple(
            bolt
            for bolt in self.bolts
            if any(given.component == component_id and given.stream == stream for given in bolt.inputs)
        )

    def with_id(self, topology_id: str) -> Topology:
        """The same topology under another id."""
        other = copy.copy(self)
        object.__setattr__(other, "id", validate_topology_id(topology_id))
        return other

    def describe(self) -> str:
        """Components, streams with types, groupings, slots, tasks and phase, one line each."""
        lines = [f"topology {self.id} ({self.semantics}, up to {self.max_spout_pending} batches at once)"]
        for component in self.components:
            inputs = " and ".join(map(str, component.inputs))
            lines.append(
                f"  {component.id}: {describe_instance(component.instance)}"
                f"{f' <- {inputs}' if inputs else ''}"
                f", {_count(component.parallelism, 'slot')}, {_count(component.tasks, 'task')}"
                f", {component.phase}"
                f"{f' -> {describe_streams(component)}' if component.streams else ''}"
            )
        return "\n".join(lines)


def describe_instance(instance: SourceSpout[Any] | Bolt) -> str:
    """What a component is: its class, or the function or source behind it."""
    if isinstance(instance, SourceSpout):
        return f"{type(instance).__name__}({type(instance.source).__name__})"
    return getattr(instance, "__name__", type(instance).__name__)


def describe_streams(component: Component) -> str:
    """A component's output: the default stream's fields, and other streams with their names."""
    shown = []
    for name, schema in component.streams.items():
        text = format_schema(schema) if name == DEFAULT_STREAM else f"{name}: {format_schema(schema)}"
        shown.append(f"{text} (direct)" if name in component.direct_streams else text)
    return "; ".join(shown)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
