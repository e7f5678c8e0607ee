"""`TopologyBuilder`: declares and checks a topology of tracked tuples."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txstream.api.bolt_checks import check_methods, warn_of_uncalled
from txstream.api.bolts import BasicBolt, Bolt, OutputFieldsDeclarer, overrides
from txstream.api.builder import DEFAULT_MAX_ATTEMPTS, DEFAULT_MESSAGE_TIMEOUT_SECONDS, GraphBuilder
from txstream.api.declarer import BoltDeclarer, check_number
from txstream.api.spouts import SourceSpout
from txstream.api.topology import Component, Topology
from txstream.api.tracked import RichBolt, Spout
from txstream.core.errors import TopologyError
from txstream.core.semantics import Semantics
from txstream.core.wording import counted

DEFAULT_MAX_SPOUT_PENDING = 10_000


@dataclass(frozen=True, repr=False)
class TrackedTopology(Topology):
    """A built topology of tracked tuples. Build it with `TopologyBuilder`."""

    ackers: int = 1

    @property
    def tier(self) -> str:
        return "tracked"

    @property
    def fed(self) -> tuple[Component, ...]:
        return self.spouts

    @property
    def tracks(self) -> bool:
        return self.ackers > 0

    def source_identity(self) -> tuple[object, Mapping[str, Any]]:
        spouts = {spout.id: type(spout.instance).__qualname__ for spout in self.spouts}
        return self.spouts[0].instance, {"tracked": spouts}

    @property
    def semantics(self) -> Semantics:
        """The one that promises as much: at least once, and no progress is stored."""
        return Semantics.NON_TRANSACTIONAL

    @property
    def kind(self) -> str:
        return "tracked"

    @property
    def at_once(self) -> str:
        window = f"{counted(self.max_spout_pending, 'tree')} of a spout task at once"
        return f"{window}, {counted(self.ackers, 'acker')}"

    @property
    def unit(self) -> str:
        return "a tree"

    @property
    def spouts(self) -> tuple[Component, ...]:
        return tuple(component for component in self.components if isinstance(component.instance, Spout))

    @property
    def bolts(self) -> tuple[Component, ...]:
        return self.components[len(self.spouts) :]

    def to_document(self) -> dict[str, Any]:
        return {**super().to_document(), "ackers": self.ackers}


class TopologyBuilder(GraphBuilder):
    """Declares a topology of tracked tuples: its id, any number of spouts, and any acyclic graph of bolts
    below.

    While `max_spout_pending` trees of a spout task are open, its `next_tuple` is not called. A tree that
    takes longer than `message_timeout_seconds` fails. `ackers` share the trees by root; with `ackers=0`
    nothing is tracked, and a spout's `ack` follows its emit. A bug in a bolt fails all trees of its
    micro-batch; `max_attempts` such micro-batches in a row end the topology. `settings` and `workers` are as
    in `TransactionalTopologyBuilder`.
    """

    def __init__(
        self,
        topology_id: str,
        *,
        ackers: int = 1,
        max_spout_pending: int = DEFAULT_MAX_SPOUT_PENDING,
        message_timeout_seconds: float = DEFAULT_MESSAGE_TIMEOUT_SECONDS,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        settings: Mapping[str, Any] | None = None,
        workers: int | None = None,
    ) -> None:
        super().__init__(
            topology_id,
            max_spout_pending=max_spout_pending,
            message_timeout_seconds=message_timeout_seconds,
            max_attempts=max_attempts,
            settings=settings,
            workers=workers,
        )
        self._ackers = ackers if ackers == 0 else check_number("ackers", ackers)

    def set_spout(self, component: str, spout: Spout, parallelism: int = 1) -> None:
        """Add a spout with `parallelism` tasks, each a copy of this instance."""
        self._check_name(component)
        if isinstance(spout, SourceSpout):
            raise TopologyError(
                f"component {component!r}: {type(spout).__name__} emits batches of a log; use "
                f"TransactionalTopologyBuilder"
            )
        if not isinstance(spout, Spout):
            hint = " (pass an instance, not the class)" if isinstance(spout, type) else ""
            raise TopologyError(f"component {component!r}: {spout!r} is not a Spout{hint}")
        check_number(f"the parallelism of {component!r}", parallelism)
        check_methods(component, spout)
        declarer = OutputFieldsDeclarer(component, ())
        spout.declare_output_fields(declarer)
        if not declarer.streams:
            raise TopologyError(
                f"component {component!r}: {type(spout).__name__} declares no output; give it one, such as "
                f'output = "value string"'
            )
        self._spouts[component] = Component(
            id=component,
            instance=copy.copy(spout),
            parallelism=parallelism,
            tasks=parallelism,
            streams=declarer.streams,
            direct_streams=frozenset(declarer.direct_streams),
        )

    def set_bolt(self, component: str, bolt: Bolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a BasicBolt or RichBolt; choose its inputs on what this returns."""
        return self._add(component, bolt, parallelism)

    def _refuse(self, component: str, bolt: Bolt, *, is_committer: bool) -> None:
        if not isinstance(bolt, (BasicBolt, RichBolt)):
            raise TopologyError(
                f"component {component!r}: {type(bolt).__name__} needs batches, but tracked tuples come one "
                f"by one; derive it from BasicBolt or RichBolt, or use TransactionalTopologyBuilder"
            )
        if isinstance(bolt, BasicBolt) and not overrides(bolt, BasicBolt.execute):
            raise TopologyError(
                f"component {component!r}: {type(bolt).__name__} has no execute, but tracked tuples come one "
                f"by one, never to execute_batch; give it one, or use TransactionalTopologyBuilder"
            )

    def build(self) -> TrackedTopology:
        """Return the checked topology. Raises TopologyError or SchemaError, naming the component and the
        remedy. Warns (TopologyWarning) of a method whose name is almost that of a spout's or bolt's
        method."""
        return self._build(stacklevel=3)

    def _build(self, stacklevel: int) -> TrackedTopology:
        if not self._spouts:
            raise TopologyError(f"topology {self._id!r} has no spout; add one with set_spout")
        for component, declared in self._spouts.items():
            if isinstance(declared.instance, Spout):
                warn_of_uncalled(component, declared.instance, stacklevel)
        return TrackedTopology(
            id=self._id,
            components=self._components(stacklevel),
            max_spout_pending=self._max_spout_pending,
            message_timeout_seconds=self._message_timeout_seconds,
            max_attempts=self._max_attempts,
            settings=self._settings,
            workers=self._workers,
            ackers=self._ackers,
        )
