"""The conformance suite for sources: does a `PartitionedSpout` keep what a topology relies on?

Write a `SpoutHarness` that says how rows come into the log, then

    print(check_spout(MyHarness))

or, with pytest, one test for each promise:

    @pytest.mark.parametrize("check", spout_checks(), ids=str)
    def test_promise(check):
        check.run(MyHarness)

Needs no pytest, no Spark session and no service but the source's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from txstream.api.errors import UsageError
from txstream.testing import spout_batches, spout_outages, spout_plans, spout_reads, spout_sources
from txstream.testing.spout_harness import NotApplicableError, Row, Rows, SpoutHarness
from txstream.testing.spout_promises import BrokenPromise, SpoutConformanceError
from txstream.testing.spout_trial import SpoutCheck

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


@dataclass(frozen=True, slots=True)
class SpoutReport:
    """The promises that are kept, and those that do not apply, with the reason."""

    kept: tuple[str, ...]
    not_applicable: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"kept            {name}" for name in self.kept]
        lines += [f"not applicable  {name}: {reason}" for name, reason in self.not_applicable]
        return "\n".join(lines)


def spout_checks() -> tuple[SpoutCheck, ...]:
    """All checks; `str()` of one is the name of its promise."""
    return (
        *spout_batches.CHECKS,
        *spout_plans.CHECKS,
        *spout_reads.CHECKS,
        *spout_outages.CHECKS,
        *spout_sources.CHECKS,
    )


def check_spout(
    create_harness: Callable[[], SpoutHarness], *, only: Iterable[str] | None = None
) -> SpoutReport:
    """Run all checks, or those that `only` names, each over a new harness.

    Raises SpoutConformanceError that tells every broken promise, UsageError for an unknown name, and what the
    harness raises.
    """
    kept: list[str] = []
    not_applicable: list[tuple[str, str]] = []
    broken: list[BrokenPromise] = []
    for check in _chosen(only):
        try:
            reason = check.run(create_harness)
        except SpoutConformanceError as error:
            broken += error.broken
            continue
        if reason is None:
            kept.append(check.name)
        else:
            not_applicable.append((check.name, reason))
    if broken:
        raise SpoutConformanceError(*broken)
    return SpoutReport(tuple(kept), tuple(not_applicable))


def _chosen(only: Iterable[str] | None) -> Sequence[SpoutCheck]:
    checks = spout_checks()
    if only is None:
        return checks
    names = set(only)
    unknown = sorted(names - {check.name for check in checks})
    if unknown:
        raise UsageError(
            f"there is no check {unknown[0]!r}; the checks are {', '.join(check.name for check in checks)}"
        )
    return [check for check in checks if check.name in names]
