"""A topology as the simulation runs it: the user's bolts over rows in memory and simulated databases."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from txstream.api.bolts import DataFrameBolt
from txstream.api.spouts import SpoutContext
from txstream.api.state import SqlState
from txstream.api.topology import CommitChoice, Topology
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import UsageError
from txstream.core.wording import a
from txstream.engine.batch.execution_plan import ExecutionPlan, compile_topology
from txstream.engine.commit.state_targets import StateTarget, state_targets
from txstream.plugins.proof.simulation.known import Memo, Results, committer_with
from txstream.plugins.proof.simulation.source import Rows, SimulatedSource, rows_of, to_rows
from txstream.plugins.proof.simulation.truth import Truth
from txstream.plugins.proof.stores.layout import Spaces
from txstream.spouts.memory import MemoryRange
from txstream.zookeeper.tree import Node

FIRST = "memory://one"
_ALL_ROWS = 1_000_000
_NAMES = ("one", "two", "three", "four", "five", "six", "seven", "eight")


class Code(NamedTuple):
    """What a driver runs. Its `targets` have no databases yet."""

    topology: Topology
    targets: list[StateTarget]
    plan: ExecutionPlan


class Begun(NamedTuple):
    """ZooKeeper and databases in memory for a topology that is registered but that nobody has led yet."""

    nodes: dict[str, Node]
    spaces: list[Spaces]


@dataclass
class _Unopened:
    display_url: str
    on_executors: bool = True
    keeps_dead_letters: bool = True
    removes_expired: bool = True
    marks_rows: bool = True
    hides_removed: bool = True


class Places:
    """Maps URLs to simulated databases, for all releases of one topology."""

    def __init__(self) -> None:
        self.by_url: dict[str, str] = {}

    def of(self, url: str | None) -> str:
        if not url:
            return FIRST
        if url.startswith("memory://"):
            return url
        if url not in self.by_url:
            taken = {FIRST, *self.by_url.values()}
            free = [f"memory://{name}" for name in _NAMES if f"memory://{name}" not in taken]
            if not free:
                raise UsageError(f"states are in more than {len(_NAMES)} databases, which no simulation has")
            self.by_url[url] = free[0]
        return self.by_url[url]


class Program:
    """One release of a topology's code, and its rows. `number` grows with each release. The constructor
    raises UsageError for what cannot be simulated."""

    def __init__(
        self,
        topology: Topology,
        rows: Mapping[str, Sequence[Any]] | Sequence[Any] | None = None,
        *,
        number: int = 1,
        places: Places | None = None,
        expected: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(topology, Topology):
            raise UsageError(f"a simulation needs a built Topology, not {a(type(topology).__name__)}")
        for component in topology.bolts:
            if isinstance(component.instance, DataFrameBolt):
                raise UsageError(
                    f"component {component.id!r} is a DataFrameBolt, which only Spark computes; simulate "
                    f"the topology with a Python bolt in its place, and test it as it is with "
                    f"TopologyTest(spark=...)"
                )
        if not topology.states and not topology.map_states:
            raise UsageError(
                f"topology {topology.id!r} fills no state table, so no simulation could tell whether it is "
                f"exact"
            )
        self.number = number
        self.rows: Rows = (
            rows_of(topology.spout.source) if rows is None else to_rows(topology.spout.output, rows)
        )
        found = Places() if places is None else places
        self.topology = _simulated(topology, found, self.rows)
        self.context = SpoutContext(topology.id, topology.components[0].id, {})
        self.results, self.memo = Results(), Memo()
        self.committer = committer_with(self.memo)
        self.codec: MetaCodec[Any] = MetaCodec(MemoryRange)
        self.expected = expected
        self.truth: Truth | None = None
        self.begun: Begun | None = None
        self._codes: dict[tuple[CommitChoice, int], Code] = {}

    @property
    def states(self) -> list[tuple[SqlState, bool]]:
        """The topology's states, each with whether bolts write it themselves."""
        topology = self.topology
        return [
            *((bolt.state, False) for bolt, _ in topology.states),
            *((use.state, True) for use in topology.map_states),
        ]

    @property
    def databases(self) -> list[str]:
        """The URLs of its databases, the default one first."""
        return sorted({state.url or FIRST for state, _ in self.states}, key=_order)

    def commits(self) -> Sequence[CommitChoice]:
        """Return the ways in which it may commit."""
        return ("driver", "auto", "executors")

    def code(self, commit: CommitChoice, pending: int) -> Code:
        """Return the code that commits in this way, with so many batches pending. With `auto`, executors
        write any batch of more than one row, unless they have failed at its txid. Where bolts write states,
        `driver` is `auto` for batches that are never too large for the driver."""
        found = self._codes.get((commit, pending))
        if found is None:
            in_part = commit == "driver" and self.topology.map_states
            topology = replace(
                self.topology,
                commit="auto" if in_part else commit,
                driver_commit_rows=_ALL_ROWS if in_part else 1 if commit == "auto" else None,
                max_spout_pending=pending,
            )
            plan = compile_topology(topology, self.context, "simulated")
            unopened: Any = _Unopened
            found = self._codes[commit, pending] = Code(
                topology, state_targets(topology, FIRST, unopened), plan
            )
        return found


def _order(url: str) -> tuple[int, str]:
    name = url.removeprefix("memory://")
    return (_NAMES.index(name) if name in _NAMES else len(_NAMES), name)


def _simulated(topology: Topology, places: Places, rows: Rows) -> Topology:
    spout = copy.copy(topology.spout)
    spout.source = SimulatedSource(spout.output, rows)
    first, *others = topology.components
    topology = replace(topology, components=(replace(first, instance=spout), *others))
    return topology.with_states(lambda state: replace(state, url=places.of(state.url)))
