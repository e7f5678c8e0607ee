"""Orders to Spark tasks that stay, and their answers, through seeded faults.

The product's own book-keeping runs (`Residents`); what is at the other end of its connections is simulated.
An order or an answer may be lost, with the connection or without; a task may answer twice, late, or after its
attempt was given up; it may be run again and connect a second time. Whatever happens, a call gets the answer
to its own order, or none, and then a job does the work.
"""

from __future__ import annotations

import random
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from support.inmemory import attempt as attempt_of

from txstream.core.errors import BatchFailedError
from txstream.core.transaction import Epoch, TransactionAttempt, Txid, attempt_id
from txstream.engine.batch.messages import ANSWER, Element, WorkOrder
from txstream.plugins.residents import residents as product
from txstream.plugins.residents.residents import Residents

SEEDS = 300
STEPS = 40
DEADLINE_SECONDS = 60.0
_HEAD = struct.Struct(">IQ")


class TakesAnyAnswer(Residents):
    """The mistake: an answer belongs to whatever its resident was asked last."""

    def _answered(self, resident: Any, number: int, elements: list[Element]) -> bool:
        order = resident.order
        return super()._answered(resident, number if order is None else order.number, elements)


@dataclass(eq=False)
class Line:
    """The driver's end of a connection, and its socket. `orders` are those that arrived at the other end."""

    sent: Callable[[int], None]
    loses_orders: bool
    is_shut: bool = False
    orders: list[tuple[int, str]] = field(default_factory=list)

    def send_bytes(self, message: bytes) -> None:
        if self.is_shut:
            raise BrokenPipeError
        number = _HEAD.unpack_from(message)[1]
        if not self.loses_orders:
            self.orders.append((number, message[_HEAD.size :].decode()))
        self.sent(number)

    def shutdown(self, _how: int) -> None:
        self.is_shut = True


@dataclass(eq=False)
class Call:
    """A call of `Residents.run`, on a thread of its own. `found` is None if a job has to do the work."""

    order: WorkOrder
    sent: Any = None
    thread: threading.Thread | None = None
    is_cancelled: bool = False
    has_ended: bool = False
    found: Any = None


def answer_to(text: str) -> list[Element]:
    return [(ANSWER, f"what comes of {text}".encode())]


class Model:
    """One history."""

    def __init__(self, seed: int, kind: type[Residents]) -> None:
        self.random = random.Random(seed)
        self.happened: Counter[str] = Counter()
        self.calls: list[Call] = []
        self.lines: list[tuple[Any, Line]] = []
        self.grace: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._txid = 0
        java = SimpleNamespace(getLocalProperties=lambda: SimpleNamespace(clone=lambda: None))
        context: Any = SimpleNamespace(
            applicationId="model",
            _jsc=SimpleNamespace(sc=lambda: java),
            cancelJobsWithTag=lambda _tag: None,
        )
        shipped: Any = None
        self.residents = kind(context, shipped, "model", 0)
        self.residents._lives = {0: 0, 1: 0}

    def run(self) -> None:
        events = [self.connects, self.asks, self.asks, self.answers, self.answers]
        events += [self.answers_again, self.is_lost, self.gives_up, self.ends_grace]
        for _ in range(STEPS):
            self.random.choice(events)()
            self.check()
        for resident, _ in self.lines:
            self.residents._end(resident)
        self.check()
        assert all(call.has_ended for call in self.calls), "a call waits for ever"

    def check(self) -> None:
        """Wait for the calls that end now, and look at what they have found."""
        for call in self.calls:
            if not call.has_ended and (call.sent is None or call.sent.done.is_set()):
                assert call.thread is not None
                call.thread.join(DEADLINE_SECONDS)
                assert call.has_ended
                self.happened["done by a job" if call.found is None else "answered"] += 1
                if isinstance(call.found, BatchFailedError):
                    assert call.is_cancelled
                elif call.found is not None:
                    assert call.found == answer_to(call.order.to_json())

    # --- what may happen ------------------------------------------------------------------------------

    def connects(self) -> None:
        """A resident connects, perhaps because Spark runs its task again."""
        line = Line(self._sent, loses_orders=self.random.random() < 0.1)
        resident: Any = product._Resident(self.random.randrange(2), 0, line, line)  # type: ignore[arg-type]
        if self.residents._let_in(resident):
            self.lines.append((resident, line))

    def asks(self) -> None:
        """A batch is processed: a new one, or one more trial of an attempt."""
        self._txid += self._txid == 0 or self.random.random() < 0.7
        attempt = TransactionAttempt(Txid(self._txid), attempt_id(Epoch(1), self._txid))
        call = Call(WorkOrder(attempt, 1, [{"trial": len(self.calls)}]))
        call.thread = threading.Thread(target=lambda: self._call(call), daemon=True)
        self.calls.append(call)
        with self._changed:
            call.thread.start()
            assert self._changed.wait_for(lambda: call.sent or call.has_ended, DEADLINE_SECONDS)

    def _call(self, call: Call) -> None:
        try:
            call.found = self.residents.run(call.order, 1)
        except BatchFailedError as error:
            call.found = error
        with self._changed:
            call.has_ended = True
            self._changed.notify_all()

    def _sent(self, number: int) -> None:
        with self._changed:
            self.calls[-1].sent = next(
                one.order for one, _ in self.lines if one.order is not None and one.order.number == number
            )
            self._changed.notify_all()

    def answers(self) -> None:
        """A resident answers its last order, even if nobody waits for it any more."""
        self._answer(lambda orders: orders[-1])

    def answers_again(self) -> None:
        """A resident answers an order once more, or an older one."""
        self._answer(self.random.choice)

    def _answer(self, choose: Callable[[list[tuple[int, str]]], tuple[int, str]]) -> None:
        asked = [(resident, line) for resident, line in self.lines if line.orders]
        if not asked:
            return
        resident, line = self.random.choice(asked)
        number, text = choose(line.orders)
        if not self.residents._answered(resident, number, answer_to(text)):
            self.happened["refused"] += 1
            self.residents._end(resident)

    def is_lost(self) -> None:
        """A connection ends, between two messages or within one."""
        if self.lines:
            self.residents._end(self.random.choice(self.lines)[0])

    def gives_up(self) -> None:
        """An attempt is superseded or takes too long."""
        waiting = [call for call in self.calls if not call.has_ended]
        if waiting:
            attempt = self.random.choice(waiting).order.attempt
            for call in waiting:
                call.is_cancelled |= call.order.attempt == attempt
            self.residents.cancel(attempt)
            self.happened["given up"] += 1

    def ends_grace(self) -> None:
        """A resident has worked on for too long."""
        if self.grace:
            self.grace.pop(0)()


def simulate(kind: type[Residents], monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    happened: Counter[str] = Counter()
    monkeypatch.setattr(product, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(product, "_FIRST_SECONDS", 0.0)
    for seed in range(SEEDS):
        model = Model(seed, kind)

        def timer(_seconds: float, call: Callable[..., None], given: Any, model: Model = model) -> Any:
            return SimpleNamespace(start=lambda: model.grace.append(lambda: call(*given)))

        monkeypatch.setattr(threading, "Timer", timer)
        try:
            model.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
        happened += model.happened
    return happened


def test_a_call_gets_the_answer_to_its_own_order_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    happened = simulate(Residents, monkeypatch)
    assert min(happened[what] for what in ("answered", "done by a job", "refused", "given up")) > SEEDS / 10


def test_an_answer_to_another_order_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="seed") as found:
        simulate(TakesAnyAnswer, monkeypatch)
    assert "what comes of" in str(found.value.__cause__)


def test_the_first_batch_waits_for_the_first_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "_FIRST_SECONDS", DEADLINE_SECONDS)
    residents = Model(1, Residents).residents
    taken: list[Any] = []
    waits = threading.Event()
    wait = residents._changed.wait_for

    def waiting(is_decided: Callable[[], bool], seconds: float) -> bool:
        waits.set()
        return wait(is_decided, seconds)

    monkeypatch.setattr(residents._changed, "wait_for", waiting)
    asking = threading.Thread(target=lambda: taken.append(residents._take(attempt_of(1), 1)))
    asking.start()
    assert waits.wait(DEADLINE_SECONDS)
    line: Any = Line(lambda _number: None, loses_orders=False)
    assert residents._let_in(product._Resident(0, 0, line, line))
    asking.join(DEADLINE_SECONDS)
    (((resident, order),),) = taken
    assert resident.order is order


def test_a_resident_that_does_not_come_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "_FIRST_SECONDS", 0.01)
    residents = Model(1, Residents).residents
    waited: list[float] = []
    wait = residents._changed.wait_for

    def waiting(is_decided: Callable[[], bool], seconds: float) -> bool:
        waited.append(0.0 if is_decided() else seconds)
        return wait(is_decided, seconds)

    monkeypatch.setattr(residents._changed, "wait_for", waiting)
    assert residents._take(attempt_of(1), 1) is None
    assert residents._take(attempt_of(2), 1) is None
    assert waited[0] > 0 == waited[1]
