"""The conformance suite for state backends: each promise has stores that break it, and they are found."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from support.wrong_states import WRONG

import txstream
from guards import GUARDS
from guards.patch import Patch, in_force
from txstream.core.errors import UsageError
from txstream.plugins.proof.state_suite.trial import Terms
from txstream.plugins.proof.stores.memory import MemoryBackend, forget
from txstream.state import StateBackend
from txstream.testing import StateConformanceError, check_state_backend, state_checks

pytestmark = pytest.mark.soak

CHECKS = {check.name: check for check in state_checks()}
Store = tuple[type[MemoryBackend], Sequence[Patch]]


def stores_that_break(promise: str) -> dict[str, Store]:
    """Return the wrong stores, and the store in memory without each guard of the promise."""
    stores: dict[str, Store] = {store.__name__: (store, ()) for store in WRONG.get(promise, ())}
    return stores | {
        guard.name: (MemoryBackend, guard.patches) for guard in GUARDS if promise in guard.broken
    }


_numbers = itertools.count(1)


@pytest.fixture
def name() -> Iterator[str]:
    name = f"conformance-{next(_numbers)}"
    yield name
    forget(name)


def test_the_report_says_what_was_kept_and_nothing_is_left_behind(name: str) -> None:
    report = check_state_backend(f"memory://{name}", only=["join-creates", "other-processes-see-it"])
    kept, not_applicable = str(report).splitlines()
    assert kept == "kept            join-creates"
    assert not_applicable.startswith("not applicable  other-processes-see-it: other processes cannot open")
    with MemoryBackend(f"memory://{name}").transaction() as here:
        assert list(here.scan("fence")) == list(here.scan("table")) == []


def test_every_promise_has_a_store_that_breaks_it() -> None:
    assert {*WRONG, *(promise for guard in GUARDS for promise in guard.broken)} == CHECKS.keys()
    assert len(CHECKS) == len(state_checks())


@pytest.mark.parametrize("promise", CHECKS)
def test_a_wrong_store_is_found(promise: str, subtests: pytest.Subtests, name: str) -> None:
    for number, (wrong, (store, patches)) in enumerate(stores_that_break(promise).items()):
        with subtests.test(wrong):
            a_wrong_store_is_found(promise, store, patches, f"{name}-{number}")
        forget(f"{name}-{number}")


def a_wrong_store_is_found(
    promise: str, store: type[MemoryBackend], patches: Sequence[Patch], name: str
) -> None:
    def create(url: str, **options: Any) -> StateBackend:
        return store(f"memory://{name}", message_timeout_seconds=3.0)

    take_back = txstream.register_backend("wrong", create)
    terms = Terms(lambda: create(""), "wrong://x", lock_seconds=0.05, deadline_seconds=5.0)
    try:
        with pytest.raises(StateConformanceError) as told, in_force(patches):
            CHECKS[promise].try_on(terms)
    finally:
        take_back()
    (broken,) = told.value.broken
    check = CHECKS[promise]
    assert (broken.name, broken.rule, broken.hint) == (promise, check.rule, check.hint)
    assert broken.expected
    assert broken.found
    assert f"promise {promise!r} is broken" in str(told.value)


def test_all_broken_promises_are_told_at_once(name: str) -> None:
    (guard,) = (guard for guard in GUARDS if guard.mutant == "NoRestore")
    with pytest.raises(StateConformanceError) as told, in_force(guard.patches):
        check_state_backend(lambda: MemoryBackend(f"memory://{name}"), lock_seconds=0.05)
    assert {"phantom-keys-are-undone", "beginning-undoes"} <= {broken.name for broken in told.value.broken}


def test_only_what_is_asked_for(name: str) -> None:
    report = check_state_backend(lambda: MemoryBackend(f"memory://{name}"), only=["fence-only-grows"])
    assert report.kept == ("fence-only-grows",)
    with pytest.raises(UsageError, match="there is no check 'speed'; the checks are nothing-known"):
        check_state_backend(f"memory://{name}", only=["speed"])


def test_a_password_that_is_shown(name: str) -> None:
    class Talkative(MemoryBackend):
        def __init__(self, url: str, **options: Any) -> None:
            super().__init__(f"memory://{name}")
            self.display_url = url

    take_back = txstream.register_backend("talkative", Talkative)
    try:
        with pytest.raises(StateConformanceError, match="the URL without its password"):
            CHECKS["url-is-shown-without-password"].run("talkative://me:hidden@host/x")
    finally:
        take_back()


def test_a_store_that_hangs_is_given_up(name: str) -> None:
    let_go = threading.Event()

    class Hanging(MemoryBackend):
        def read_fence(self, topology: str) -> Any:
            let_go.wait(30)

    terms = Terms(lambda: Hanging(f"memory://{name}"), deadline_seconds=0.2)
    with pytest.raises(StateConformanceError, match=r"none within 0\.2 s"):
        CHECKS["join-creates"].try_on(terms)
    let_go.set()
