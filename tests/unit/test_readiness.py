"""A warm standby keeps itself ready: it repeats its steps in order, whatever fails meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from txstream.core.errors import ServiceUnavailableError
from txstream.core.waiting import RunAbortedError
from txstream.engine.start import warm_standby as readiness
from txstream.engine.start.warm_standby import Readiness

DEADLINE_SECONDS = 60.0


class Steps:
    """Two steps. Each raises its `errors`, one for each time it is taken, then succeeds."""

    def __init__(self, **errors: list[BaseException]) -> None:
        self.errors = errors
        self.taken: list[str] = []
        self.ready = threading.Semaphore(0)
        self.interrupted = threading.Event()

    def start(self) -> Readiness:
        def step(name: str) -> Callable[[], None]:
            def take() -> None:
                self.taken.append(name)
                if self.errors.get(name):
                    raise self.errors[name].pop(0)

            return take

        steps = {name: step(name) for name in ("source", "Spark")}
        return Readiness(steps, self.interrupted.wait, self.ready.release)

    def wait_until_ready(self) -> None:
        assert self.ready.acquire(timeout=DEADLINE_SECONDS)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "TURN_SECONDS", 0.001)
    monkeypatch.setattr(readiness, "AWAY_SECONDS", 0.001)


@pytest.fixture
def _ends() -> Iterator[None]:
    yield
    assert not [one for one in threading.enumerate() if one.name == "txstream-ready"]


@pytest.mark.usefixtures("_ends")
def test_what_is_ready_is_told_and_looked_after(caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps()
    made = steps.start()
    steps.wait_until_ready()
    assert made.is_ready
    while len(steps.taken) < 6:
        made._thread.join(0.001)
    made.end()
    assert steps.taken[:6] == ["source", "Spark"] * 3
    assert not steps.ready.acquire(blocking=False), "told once"
    assert not caplog.messages


@pytest.mark.usefixtures("_ends")
def test_what_fails_is_told_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    away = [ServiceUnavailableError("no broker answers"), ServiceUnavailableError("no broker answers")]
    steps = Steps(source=[*away])
    made = steps.start()
    steps.wait_until_ready()
    assert steps.taken[:4] == ["source"] * 3 + ["Spark"], "Spark starts when all else was ready"
    steps.errors["Spark"] = [ValueError("its context was stopped")]
    steps.wait_until_ready()
    made.end()
    assert made.is_ready
    began, ended, other, _ = caplog.messages
    assert began.startswith("waiting for source since ")
    assert began.endswith(": no broker answers")
    assert ended.startswith("no longer waiting for source since ")
    assert other.endswith("its context was stopped")


@pytest.mark.usefixtures("_ends")
def test_what_is_away_is_looked_for_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "TURN_SECONDS", 10 * DEADLINE_SECONDS)
    steps = Steps(source=[ServiceUnavailableError("no broker answers")])
    made = steps.start()
    steps.wait_until_ready()
    made.end()
    assert steps.taken == ["source", "source", "Spark"]


@pytest.mark.usefixtures("_ends")
def test_spark_is_kept_ready_while_something_else_is_away() -> None:
    steps = Steps()
    made = steps.start()
    steps.wait_until_ready()
    steps.errors["source"] = [ServiceUnavailableError("no broker answers")] * 3
    steps.wait_until_ready()
    made.end()
    assert steps.taken == ["source", "Spark"] * (len(steps.taken) // 2)


@pytest.mark.usefixtures("_ends")
def test_a_start_that_was_given_up_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps(Spark=[RunAbortedError("the run was stopped")])
    made = steps.start()
    made._thread.join(DEADLINE_SECONDS)
    made.end()
    assert steps.taken == ["source", "Spark"]
    assert not made.is_ready
    assert not caplog.messages


def test_an_end_waits_for_the_step_that_is_being_taken() -> None:
    """If Spark is being started, the run needs it at once."""
    order: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def start() -> None:
        begun.set()
        assert go_on.wait(DEADLINE_SECONDS)
        order.append("started")

    made = Readiness({"Spark": start}, threading.Event().wait, lambda: None)

    def end() -> None:
        made.end()
        order.append("ended")

    ending = threading.Thread(target=end)
    assert begun.wait(DEADLINE_SECONDS)
    ending.start()
    assert made._ended.wait(DEADLINE_SECONDS)
    go_on.set()
    ending.join(DEADLINE_SECONDS)
    assert order == ["started", "ended"]


def test_an_end_does_not_wait_long_when_the_run_is_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_END_SECONDS", 0.001)
    begun, go_on, interrupted = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        assert go_on.wait(DEADLINE_SECONDS)

    made = Readiness({"Spark": hang}, interrupted.wait, lambda: None)
    assert begun.wait(DEADLINE_SECONDS)
    interrupted.set()
    made.end()
    assert made._thread.is_alive()
    go_on.set()
    made._thread.join(DEADLINE_SECONDS)


def test_a_cold_standby_keeps_nothing_ready() -> None:
    made = Readiness({}, threading.Event().wait, lambda: None)
    made.end()
    assert not made.is_ready
