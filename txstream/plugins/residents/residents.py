"""Spark tasks that stay. Each takes one work order after the other over a connection to the driver, so that a
small batch does not cost the start of a Spark job.

Spark places these tasks, starts them again when they die and ends them with the run. Each is a job of its own
with one Spark task, which connects to the driver and proves that it has the run's key.

Invariants.
- An order goes to a resident that is free, and its answer belongs to the call that sent it: a resident has
  one order at a time, its answer bears the order's number, and one that was given up, or answers anything
  else than what it was asked, is never asked or heard again.
- Whoever finds no resident runs a Spark job. So the loss of a resident fails neither a run nor an attempt:
  what it was doing is done again by a job, as Spark itself does with the work of a task that it has lost.
- Residents never take the last core from jobs. They leave while batches need more than they can do, and
  when a job is cancelled, perhaps because it got no core.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING, Any

from txstream.core.backoff import Backoff
from txstream.core.errors import BatchFailedError
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.messages import ANSWER, Element, WorkOrder
from txstream.engine.batch.worker import run_first_stage
from txstream.engine.batch.worker_process import close_worker_process, worker_process
from txstream.engine.spark.executor import shipped_plan
from txstream.engine.spark.jobs import JobProperties, collect
from txstream.engine.spark.master import Master
from txstream.engine.spark.session import PROCESSING_POOL

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext

log = logging.getLogger(__name__)

# Waiting for a resident that is busy costs no more than the job that would be started instead.
_PATIENCE_SECONDS = 0.05
# How long a run's first batches wait for the first resident. Jobs beside its start would only slow it down.
_FIRST_SECONDS = 0.5
# How long a resident may go on with an order that nobody wants any more.
_GRACE_SECONDS = 1.0
_WIDE_JOBS = 2
_SMALL_JOBS = 3
_HANDSHAKE_SECONDS = 10.0
_CLOSE_SECONDS = 2.0
_AGAIN = Backoff(first_seconds=0.1, longest_seconds=10.0)
PORT_SETTING = "spark.txstream.residents.port"

# With these, Spark encrypts or checks what its tasks and its driver send each other. A connection of our own
# would be a way around that.
_PROTECTED = ("spark.network.crypto.enabled", "spark.ssl.enabled", "spark.ssl.rpc.enabled")

# By Spark application: how many cores residents of the runs in this process may hold.
_held: dict[str, int] = {}
_holding = threading.Lock()


def residents(context: SparkContext, shipped: Broadcast[bytes], run_id: str, count: int) -> Residents:
    """See `SmallBatches`. Where Spark's settings forbid residents there are none, which the log says."""
    if count and (why := refusal(context)):
        log.warning("no Spark task stays between batches: %s", why)
        count = 0
    return Residents(context, shipped, run_id, count)


def refusal(context: SparkContext) -> str | None:
    """Return why a SparkContext can have no residents, or None if it can."""
    conf = context._conf
    for name in _PROTECTED:
        if conf.get(name, "false") == "true":
            return f"{name} is set, and their connections to the driver would not be protected by it"
    if conf.get("spark.speculation", "false") == "true":
        return "spark.speculation is set, which would take a task that stays for a slow one"
    if conf.get("spark.task.cpus", "1") != "1":
        return "spark.task.cpus is set, and a task that stays would hold all of them"
    return None


@dataclass(eq=False)
class _Order:
    """An order on its way. `done` is set once there is an answer, or there will be none. `number` is another
    for each order of a run: an attempt may have several, one after the other."""

    attempt: TransactionAttempt
    number: int
    done: threading.Event = field(default_factory=threading.Event)
    elements: list[Element] | None = None
    is_cancelled: bool = False


@dataclass(eq=False)
class _Resident:
    """A connected resident. `order` is what it works on, even if nobody waits for it any more."""

    number: int
    life: int
    peer: socket.socket
    connection: Connection
    order: _Order | None = None


class Residents:
    """The residents of a run. `run` and `cancel` may be called from several threads at once.

    `count` is how many there are to be; fewer while the application has not that many cores to spare. On a
    cluster executors come and go, so that each resident asks again before it starts.
    """

    def __init__(self, context: SparkContext, shipped: Broadcast[bytes], run_id: str, count: int) -> None:
        self._context = context
        self._shipped = shipped
        self._run_id = run_id
        self._properties = JobProperties(context)
        self._key = secrets.token_bytes(32)
        self._changed = threading.Condition()
        self._connected: dict[int, _Resident] = {}
        self._lives = dict.fromkeys(range(count), 0)
        self._was_heard = self._is_warned = False
        self._awaited_until: float | None = None
        self._may_run = threading.Event()
        self._may_run.set()
        self._closed = threading.Event()
        self._wide_jobs = self._small_jobs = 0
        self._numbers = itertools.count(1)
        self._application = str(context.applicationId)
        self._asked, self._room = count, 0
        if not count:
            return
        master = Master(str(context.master))
        self._make_room()
        if master.is_in_process:
            self._asked = self._room  # its cores never become more
        if not self._asked:
            return
        conf, loopback = context._conf, "127.0.0.1"
        is_local = master.is_local
        host = loopback if is_local else str(conf.get("spark.driver.host", loopback))
        bind = loopback if is_local else str(conf.get("spark.driver.bindAddress", host))
        port = int(str(conf.get(PORT_SETTING, "0")))
        self._server = socket.create_server((bind, port))
        self._address = (host, self._server.getsockname()[1])
        threading.Thread(target=self._accept, name="txstream-residents", daemon=True).start()
        self._keepers = [
            threading.Thread(
                target=self._keep, args=(number,), name=f"txstream-resident-{number}", daemon=True
            )
            for number in range(self._asked)
        ]
        for keeper in self._keepers:
            keeper.start()

    # --- for the runner -----------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many there are to be at present."""
        return self._room

    def run(self, order: WorkOrder, width: int) -> list[Element] | None:
        """Run the only stage of a batch in `width` residents. Returns None if a job has to do it, because
        so many are not there, or have not become free in a moment, or one was lost. Raises BatchFailedError
        if the attempt was cancelled."""
        taken = self._take(order.attempt, width)
        if taken is None:
            return None
        text = order.to_json().encode()
        for index, (resident, mine) in enumerate(taken):
            try:
                resident.connection.send_bytes(_HEAD.pack(index, mine.number) + text)
            except OSError:
                self._end(resident)
        elements: list[Element] = []
        is_lost = False
        for _, mine in taken:
            mine.done.wait()
            if mine.is_cancelled:
                raise BatchFailedError(f"{order.attempt} was cancelled")
            is_lost |= mine.elements is None
            elements += mine.elements or []
        return None if is_lost else elements

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Let whoever waits for this attempt go. A resident that works on it for much longer is given up."""
        with self._changed:
            busy = [one for one in self._connected.values() if one.order and one.order.attempt == attempt]
            for resident in busy:
                assert resident.order is not None
                resident.order.is_cancelled = True
                resident.order.done.set()
        for resident in busy:
            timer = threading.Timer(_GRACE_SECONDS, self._give_up, (resident, resident.order))
            timer.daemon = True
            timer.start()

    def leave(self) -> None:
        """Have the residents give their cores to jobs."""
        if not self._asked:
            return
        self._small_jobs = 0
        with self._changed:
            self._may_run.clear()
            idle = [resident for resident in self._connected.values() if resident.order is None]
        for resident in idle:
            self._end(resident)

    def job_begins(self, *, is_small: bool) -> None:
        """Have the residents leave if a second job in a row is not for a small batch."""
        self._wide_jobs = 0 if is_small else self._wide_jobs + 1
        if self._wide_jobs >= _WIDE_JOBS:
            self.leave()

    def job_succeeded(self, *, is_small: bool) -> None:
        """Let the residents come back after a few jobs in a row that they could have spared."""
        self._small_jobs = self._small_jobs + 1 if is_small else 0
        if self._small_jobs >= _SMALL_JOBS:
            self._may_run.set()

    def close(self) -> None:
        """End all residents. One that is busy, or is not there yet, is cancelled."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._may_run.set()  # for keepers that wait for it
        if not self._asked:
            return
        with _holding:
            _held[self._application] -= self._room
            self._room = 0
        # A blocked `accept` is not ended by `close` alone.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._changed:
            connected = dict(self._connected)
        for resident in connected.values():
            self._end(resident)
        for number in range(self._asked):
            if number not in connected or connected[number].order is not None:
                self._context.cancelJobsWithTag(self._tag(number))
        deadline = time.monotonic() + _CLOSE_SECONDS
        for keeper in self._keepers:
            keeper.join(max(0.0, deadline - time.monotonic()))

    # --- residents come and go ----------------------------------------------------------------------

    def _tag(self, number: int) -> str:
        return f"txstream-{self._run_id}-resident-{number}-{self._lives[number]}"

    def _make_room(self) -> int:
        """Return how many residents the application has cores for now: one core is left to jobs. Spark's
        `defaultParallelism` does not tell, since users set it, and a cluster of one core says 2."""
        spark = self._context._jsc.sc()
        slots = int(spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile()))
        with _holding:
            if not self._closed.is_set():
                others = _held.get(self._application, 0) - self._room
                self._room = max(0, min(self._asked, slots - others - 1))
                _held[self._application] = others + self._room
            return self._room

    def _keep(self, number: int) -> None:
        """Run the job of one resident, again and again."""
        failures = 0
        while True:
            self._may_run.wait()
            if self._closed.wait(_AGAIN.after(failures)):
                return
            life = self._lives[number] = self._lives[number] + 1
            stay = functools.partial(
                _stay, self._shipped, self._run_id, self._address, self._key, number, life
            )
            began, is_error = time.monotonic(), False
            try:
                if number < self._make_room():
                    with self._properties.set(self._tag(number), PROCESSING_POOL):
                        collect(self._context.parallelize([number], 1).mapPartitions(stay))
            except Exception as error:  # noqa: BLE001 - jobs do its work, and raise what ends them too
                is_error = True
                if not self._closed.is_set():
                    self._say_why(number, error)
            is_short = time.monotonic() - began < _AGAIN.longest_seconds
            failures = failures + 1 if is_short and (is_error or self._may_run.is_set()) else 0

    def _say_why(self, number: int, error: Exception) -> None:
        text = str(error)
        log.info("resident task %d has ended: %s", number, text.partition("\n")[0])
        if not self._was_heard and not self._is_warned and _UNREACHABLE in text:
            self._is_warned = True
            log.warning(
                "no executor reaches this driver at %s:%d, so that every batch starts a Spark job: open that "
                "port (%s fixes it), or build with resident_tasks=0",
                *self._address,
                PORT_SETTING,
            )

    def _accept(self) -> None:
        while True:
            try:
                peer, address = self._server.accept()
            except OSError:  # `close` has closed it
                return
            threading.Thread(
                target=self._meet, args=(peer, address), name="txstream-resident", daemon=True
            ).start()

    def _meet(self, peer: socket.socket, address: tuple[Any, ...]) -> None:
        """Let a resident in if it has the key, then take its answers until it is gone."""
        with peer, Connection(os.dup(peer.fileno())) as connection:
            _keep_alive(peer)
            try:
                _limit(peer, _HANDSHAKE_SECONDS)
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
                _limit(peer, 0)
            except (AuthenticationError, OSError, EOFError) as error:
                if not self._closed.is_set():
                    why = "it said nothing" if isinstance(error, BlockingIOError) else str(error)
                    log.warning(
                        "%s:%d connected without the key of this run and was turned away: %s",
                        *address[:2],
                        why or type(error).__name__,
                    )
                return
            try:
                number, life = json.loads(connection.recv_bytes())
            except (OSError, EOFError):
                return  # the task has ended, and its job says why
            resident = _Resident(number, life, peer, connection)
            if self._let_in(resident):
                self._listen(resident)

    def _let_in(self, resident: _Resident) -> bool:
        self._was_heard = True
        with self._changed:
            if not self._may_run.is_set() or self._closed.is_set():
                return False
            if resident.life != self._lives[resident.number]:
                return False
            former = self._connected.get(resident.number)
            self._connected[resident.number] = resident
            self._changed.notify_all()
        if former is not None:  # Spark has run its task a second time
            self._end(former)
        return True

    def _listen(self, resident: _Resident) -> None:
        """Take answers until the connection ends."""
        connection = resident.connection
        try:
            while True:
                message = connection.recv_bytes()
                (number,), elements = _NUMBER.unpack_from(message), [(ANSWER, message[_NUMBER.size :])]
                if not self._answered(resident, number, elements) or not self._may_run.is_set():
                    break
        except (OSError, EOFError, struct.error) as error:
            if not self._closed.is_set():
                log.debug("resident task %d is gone: %r", resident.number, error)
        self._end(resident)

    def _answered(self, resident: _Resident, number: int, elements: list[Element]) -> bool:
        """Give an answer to whoever waits for it. Returns False if the resident was not asked for it now."""
        with self._changed:
            order = resident.order
            if order is None or order.number != number:
                log.warning("resident task %d answers order %d, which it has not", resident.number, number)
                return False
            resident.order = None
            self._changed.notify_all()
        order.elements = elements
        order.done.set()
        return True

    def _take(self, attempt: TransactionAttempt, width: int) -> list[tuple[_Resident, _Order]] | None:
        """Take so many residents that are free. Returns None if they are not there, or busy for longer."""
        with self._changed:

            def free() -> list[_Resident]:
                return [one for one in self._connected.values() if one.order is None]

            if self._awaited_until is None:
                self._awaited_until = time.monotonic() + _FIRST_SECONDS
            coming = 0.0 if self._was_heard else self._awaited_until - time.monotonic()

            def is_decided() -> bool:
                may_come = len(self._connected) >= width or (coming > 0 and not self._was_heard)
                return len(free()) >= width or not may_come or not self._may_run.is_set()

            self._changed.wait_for(is_decided, max(coming, _PATIENCE_SECONDS))
            taken = free()[:width]
            if len(taken) < width or not self._may_run.is_set():
                return None
            self._wide_jobs = 0
            found = []
            for resident in taken:
                resident.order = _Order(attempt, next(self._numbers))
                found.append((resident, resident.order))
            return found

    def _give_up(self, resident: _Resident, order: _Order) -> None:
        """End a resident that still works on an order that nobody waits for."""
        if resident.order is order and not self._closed.is_set():
            log.info("resident task %d is given up: it still works on %s", resident.number, order.attempt)
            with self._changed:
                is_current = self._connected.get(resident.number) is resident
                tag = self._tag(resident.number)
            self._end(resident)
            if is_current:
                self._context.cancelJobsWithTag(tag)

    def _end(self, resident: _Resident) -> None:
        """Forget a resident, let go whoever waits for it, and end its connection."""
        with self._changed:
            if self._connected.get(resident.number) is resident:
                del self._connected[resident.number]
            self._changed.notify_all()
        if resident.order is not None:
            resident.order.done.set()
        with contextlib.suppress(OSError):  # it may have ended by itself
            resident.peer.shutdown(socket.SHUT_RDWR)


# --- on the executors ----------------------------------------------------------------------------------

_HEAD = struct.Struct(">IQ")  # before an order: the index of the Spark task, the order's number
_NUMBER = struct.Struct(">Q")  # before an answer: the order's number
_TIMEVAL = struct.Struct("ll")
_UNREACHABLE = "reach the driver"


def _stay(
    shipped: Broadcast[bytes],
    run_id: str,
    address: tuple[str, int],
    key: bytes,
    number: int,
    life: int,
    numbers: Iterable[int],
) -> Iterator[Element]:
    """Take orders until the driver ends the connection, or is gone."""
    list(numbers)  # PySpark ends a worker process when a task leaves input unread
    try:
        peer = socket.create_connection(address, _HANDSHAKE_SECONDS)
    except OSError as error:
        raise ConnectionError(f"a resident task cannot {_UNREACHABLE} at {address}: {error}") from error
    peer.settimeout(None)
    with peer, Connection(os.dup(peer.fileno())) as connection:
        _keep_alive(peer)
        try:
            answer_challenge(connection, key)
            deliver_challenge(connection, key)
            plan = shipped_plan(shipped, run_id)
            worker_process(plan).get_ready()
            connection.send_bytes(json.dumps([number, life]).encode())
            while True:
                message = connection.recv_bytes()
                (index, order), text = _HEAD.unpack_from(message), message[_HEAD.size :].decode()
                # A batch of one stage has nobody to send to but the driver.
                ((_, answer),) = run_first_stage(plan, index, WorkOrder.from_json(text), worker_process(plan))
                connection.send_bytes(_NUMBER.pack(order) + answer)
        except (EOFError, ConnectionError):
            close_worker_process()  # the process stays, for other Spark tasks
            return iter(())


def _keep_alive(peer: socket.socket) -> None:
    """Have this end notice within half a minute that the machine of the other end is gone."""
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _limit(peer: socket.socket, seconds: float) -> None:
    """Have reading fail after so many seconds; 0 waits for ever. A timeout of Python's would make reads of
    the descriptor, which a Connection does, fail at once."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(int(seconds), 0))
