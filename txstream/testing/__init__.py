"""Tools for testing topologies, bolts and sources; `docs/testing.md` is the guide.

`run_bolt` runs one bolt on rows. `TopologyTest` runs a topology batch by batch under the test's control. For
a topology of tracked tuples it returns a `TrackedTest`, which runs step by step. `simulate` runs a topology
through seeded schedules of crashes and other faults. `Fail` and `Crash` are markers to put among a source's
rows. `check_spout` checks that a source keeps its promises, `check_state_backend` that a state backend does.
None of this needs pytest. A module is loaded only when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txstream.core.lazy_names import home_of, lazily

if TYPE_CHECKING:
    from txstream.core.fault_points import Point as Point
    from txstream.plugins.local.local_runner import InProcessRunner as InProcessRunner
    from txstream.plugins.proof.simulation.report import (
        SimulationError as SimulationError,
        SimulationReport as SimulationReport,
    )
    from txstream.plugins.proof.simulation.runs import simulate as simulate
    from txstream.plugins.proof.spout_suite import (
        BrokenPromise as BrokenPromise,
        NotApplicableError as NotApplicableError,
        SpoutCheck as SpoutCheck,
        SpoutConformanceError as SpoutConformanceError,
        SpoutHarness as SpoutHarness,
        SpoutReport as SpoutReport,
        check_spout as check_spout,
        spout_checks as spout_checks,
    )
    from txstream.plugins.proof.state_suite import (
        StateCheck as StateCheck,
        StateConformanceError as StateConformanceError,
        StateReport as StateReport,
        check_state_backend as check_state_backend,
        state_checks as state_checks,
    )
    from txstream.plugins.testing.attempts import (
        Attempt as Attempt,
        AttemptState as AttemptState,
    )
    from txstream.plugins.testing.bolts import (
        BoltRun as BoltRun,
        run_bolt as run_bolt,
    )
    from txstream.plugins.testing.clock import ManualClock as ManualClock
    from txstream.plugins.testing.control import NotReachedError as NotReachedError
    from txstream.plugins.testing.recorded_calls import (
        Call as Call,
        CallKind as CallKind,
    )
    from txstream.plugins.testing.topology import TopologyTest as TopologyTest
    from txstream.plugins.testing.tracked import TrackedTest as TrackedTest
    from txstream.spouts.memory.failure_markers import (
        Crash as Crash,
        CrashError as CrashError,
        Fail as Fail,
        Marker as Marker,
    )

# The command line imports `txstream.cli.faults` and must not load an engine with it.
_HOMES = {
    "txstream.core.fault_points": ("Point",),
    "txstream.plugins.testing.recorded_calls": ("Call", "CallKind"),
    "txstream.plugins.testing.attempts": ("Attempt", "AttemptState"),
    "txstream.plugins.testing.bolts": ("BoltRun", "run_bolt"),
    "txstream.plugins.testing.clock": ("ManualClock",),
    "txstream.plugins.proof.spout_suite": (
        "BrokenPromise",
        "NotApplicableError",
        "SpoutCheck",
        "SpoutConformanceError",
        "SpoutHarness",
        "SpoutReport",
        "check_spout",
        "spout_checks",
    ),
    "txstream.plugins.testing.control": ("NotReachedError",),
    "txstream.plugins.proof.simulation.report": ("SimulationError", "SimulationReport"),
    "txstream.plugins.proof.simulation.runs": ("simulate",),
    "txstream.spouts.memory.failure_markers": ("Crash", "CrashError", "Fail", "Marker"),
    "txstream.plugins.local.local_runner": ("InProcessRunner",),
    "txstream.plugins.proof.state_suite": (
        "StateCheck",
        "StateConformanceError",
        "StateReport",
        "check_state_backend",
        "state_checks",
    ),
    "txstream.plugins.testing.topology": ("TopologyTest",),
    "txstream.plugins.testing.tracked": ("TrackedTest",),
}
_HOME_OF = home_of(_HOMES)

__all__ = sorted(_HOME_OF)
__getattr__, __dir__ = lazily(__name__, _HOME_OF, __all__)
