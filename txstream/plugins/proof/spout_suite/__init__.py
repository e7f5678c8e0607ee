"""The conformance suite for sources: whether a `PartitionedSpout` does what a topology relies on.

Write a `SpoutHarness` that says how rows get into the log, then

    print(check_spout(MyHarness))

or, with pytest, one test for each promise:

    @pytest.mark.parametrize("check", spout_checks(), ids=str)
    def test_promise(check):
        check.run(MyHarness)

The suite needs no pytest, no Spark session, and no service but the source's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from txstream.plugins.proof.promises import BrokenPromise, ConformanceReport, NotApplicableError, run_checks
from txstream.plugins.proof.spout_suite import every_row_once, outages, planning, reading, source
from txstream.plugins.proof.spout_suite.harness import Row, Rows, SpoutHarness
from txstream.plugins.proof.spout_suite.trial import SpoutCheck, SpoutConformanceError

__all__ = [
    "BrokenPromise",
    "NotApplicableError",
    "Row",
    "Rows",
    "SpoutCheck",
    "SpoutConformanceError",
    "SpoutHarness",
    "SpoutReport",
    "check_spout",
    "spout_checks",
]


class SpoutReport(ConformanceReport):
    """Which of its promises a source keeps."""


def spout_checks() -> tuple[SpoutCheck, ...]:
    """Return all checks. `str()` of a check is the name of its promise."""
    rooms = (every_row_once, planning, reading, outages, source)
    return tuple(check for room in rooms for check in room.CHECKS)


def check_spout(
    create_harness: Callable[[], SpoutHarness], *, only: Iterable[str] | None = None
) -> SpoutReport:
    """Run all checks, or those that `only` names, each over a new harness. Raises SpoutConformanceError,
    which lists every broken promise, UsageError for an unknown name, and what the harness raises."""
    return run_checks(
        spout_checks(),
        only,
        lambda check: check.run(create_harness),
        error=SpoutConformanceError,
        report=SpoutReport,
    )
