"""The conformance suite for state backends: whether a `StateBackend` does what exactly-once relies on.

    print(check_state_backend("mine://somewhere"))

or, with pytest, one test for each promise:

    @pytest.mark.parametrize("check", state_checks(), ids=str)
    def test_promise(check):
        check.run("mine://somewhere")

The suite needs no pytest, no Spark session, and no service but the store's own. What it creates in the store
has names of its own and is deleted afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable

from txstream.plugins.proof.promises import BrokenPromise, ConformanceReport, run_checks
from txstream.plugins.proof.state_suite import column_types, commits, fence, joining, ledger, optional, values
from txstream.plugins.proof.state_suite.trial import StateCheck, StateConformanceError, Store, terms_of

__all__ = [
    "BrokenPromise",
    "StateCheck",
    "StateConformanceError",
    "StateReport",
    "check_state_backend",
    "state_checks",
]


class StateReport(ConformanceReport):
    """Which of its promises a store keeps."""


def state_checks() -> tuple[StateCheck, ...]:
    """Return all checks. `str()` of a check is the name of its promise."""
    rooms = (joining, fence, commits, ledger, values, column_types, optional)
    return tuple(check for room in rooms for check in room.CHECKS)


def check_state_backend(
    store: Store,
    *,
    only: Iterable[str] | None = None,
    lock_seconds: float = 0.2,
    deadline_seconds: float = 30.0,
) -> StateReport:
    """Run all checks, or those that `only` names, over one store.

    store: the store's URL, or a function that opens it. The checks share the store; each has topologies and
        tables of its own, with unique names.
    lock_seconds: how long a raise of the fence may wait for a transaction that is held open.
    deadline_seconds: how long any call may take.

    Raises StateConformanceError, which lists every broken promise, and UsageError for an unknown name.
    """
    terms = terms_of(store, lock_seconds=lock_seconds, deadline_seconds=deadline_seconds)
    return run_checks(
        state_checks(),
        only,
        lambda check: check.try_on(terms),
        error=StateConformanceError,
        report=StateReport,
    )
