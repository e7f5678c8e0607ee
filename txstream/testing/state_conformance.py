"""The conformance suite for state backends: does a `StateBackend` keep what exactly-once relies on?

    print(check_state_backend("mine://somewhere"))

or, with pytest, one test for each promise:

    @pytest.mark.parametrize("check", state_checks(), ids=str)
    def test_promise(check):
        check.run("mine://somewhere")

Needs no pytest, no Spark session and no service but the store's own. What it makes in the store has names of
its own, and is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from txstream.api.errors import UsageError
from txstream.testing import (
    state_commits,
    state_fences,
    state_joins,
    state_ledger,
    state_options,
    state_values,
)
from txstream.testing.spout_promises import BrokenPromise
from txstream.testing.state_trial import StateCheck, StateConformanceError, Store, terms_of

__all__ = [
    "BrokenPromise",
    "StateCheck",
    "StateConformanceError",
    "StateReport",
    "check_state_backend",
    "state_checks",
]


@dataclass(frozen=True, slots=True)
class StateReport:
    """The promises that are kept, and those that do not apply, with the reason."""

    kept: tuple[str, ...]
    not_applicable: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"kept            {name}" for name in self.kept]
        lines += [f"not applicable  {name}: {reason}" for name, reason in self.not_applicable]
        return "\n".join(lines)


def state_checks() -> tuple[StateCheck, ...]:
    """All checks; `str()` of one is the name of its promise."""
    return (
        *state_joins.CHECKS,
        *state_fences.CHECKS,
        *state_commits.CHECKS,
        *state_ledger.CHECKS,
        *state_values.CHECKS,
        *state_options.CHECKS,
    )


def check_state_backend(
    store: Store,
    *,
    only: Iterable[str] | None = None,
    lock_seconds: float = 0.2,
    deadline_seconds: float = 30.0,
) -> StateReport:
    """Run all checks, or those that `only` names, over one store.

    store: its URL, or a function that opens it. The checks share it; each has topologies and tables of its
        own, with names that nobody else has.
    lock_seconds: how long a raise of the fence is left to wait for a transaction that is held open.
    deadline_seconds: how long any call may take.

    Raises StateConformanceError that tells every broken promise, UsageError for an unknown name.
    """
    terms = terms_of(store, lock_seconds=lock_seconds, deadline_seconds=deadline_seconds)
    kept: list[str] = []
    not_applicable: list[tuple[str, str]] = []
    broken: list[BrokenPromise] = []
    for check in _chosen(only):
        try:
            reason = check.try_on(terms)
        except StateConformanceError as error:
            broken += error.broken
            continue
        if reason is None:
            kept.append(check.name)
        else:
            not_applicable.append((check.name, reason))
    if broken:
        raise StateConformanceError(*broken)
    return StateReport(tuple(kept), tuple(not_applicable))


def _chosen(only: Iterable[str] | None) -> Sequence[StateCheck]:
    checks = state_checks()
    if only is None:
        return checks
    names = set(only)
    unknown = sorted(names - {check.name for check in checks})
    if unknown:
        raise UsageError(
            f"there is no check {unknown[0]!r}; the checks are {', '.join(check.name for check in checks)}"
        )
    return [check for check in checks if check.name in names]
