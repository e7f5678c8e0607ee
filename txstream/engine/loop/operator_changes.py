"""What operators can change about a running topology: its slots, a pause, its end.

Invariants.
- A request is judged once, the oldest first. If its answer could not be stored, it gets the same one again.
- Only the thread that owns the coordinator at the time judges.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from txstream.api.topology import Topology
from txstream.core.errors import UsageError
from txstream.core.transaction import FIRST_TXID, Txid
from txstream.engine.loop.slots import Slots
from txstream.zookeeper import InForce, Kind, Request, Requests

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What becomes of a request: `refused` says why it is refused, `told` is for whoever asked."""

    refused: str | None
    told: Mapping[str, Any]


class Steered(Protocol):
    """What obeys operators: the coordinator of batches, or what a tier has instead of one."""

    @property
    def last_open(self) -> Txid | None:
        """The last txid that is open or committed; None if there are no txids."""

    @property
    def current(self) -> Txid:
        """The txid that commits next. Asked only where there are txids."""

    def pause(self) -> None:
        """Begin nothing new until `resume`."""

    def resume(self) -> None:
        """Begin new work again."""

    def drain(self, end: Txid) -> None:
        """Open no txid after `end`. Called only where there are txids."""


class Steering:
    """What is in force, and what becomes of further requests.

    `steered` obeys; where it has no txids, whoever begins work looks at `paused` and `stopped_by`. `retries`
    are the components whose dead letters are to be retried, as they
    were asked for; None is all. `stopped_by` names the operator who asked the run to end; None while nobody
    has.
    """

    def __init__(self, topology: Topology, steered: Steered) -> None:
        self.slots = Slots(topology)
        self.paused: Request | None = None
        self.stopped_by: str | None = None
        self.retries: deque[frozenset[str] | None] = deque()
        self._topology = topology
        self._steered = steered
        self._judged: dict[str, Judgement] = {}
        self._too_old: set[str] = set()

    def restore(self, requests: Requests, before: Requests | None = None) -> None:
        """Start with what is in force, as far as this code can have it, and judge what waits.

        `before` is what there was when this driver came. It may have stood by since, and a stop that came
        meanwhile was meant for it too.
        """
        before = before or requests
        self._too_old = {request.request_id for request in before.waiting}
        self.slots.restore(requests.in_force.slots)
        self._pause(requests.in_force.paused)
        self._restore_stop(requests.in_force, before.in_force)
        for request in requests.waiting:
            self.judge(request)
        self.slots.tell_changed()

    def judge(self, request: Request) -> Judgement:
        """Put a request into force, or refuse it. The coordinator's next commands obey it."""
        judgement = self._judged.get(request.request_id)
        if judgement is None:
            try:
                judgement = Judgement(None, self._apply(request))
            except UsageError as error:
                log.info("%s, asked by %s, is refused: %s", request.kind, request.asked_by, error)
                judgement = Judgement(str(error), {})
            self._judged[request.request_id] = judgement
        return judgement

    def answered(self, request: Request) -> None:
        """Forget a judgement: it is stored, so nobody will ask for it again."""
        self._judged.pop(request.request_id, None)

    def _apply(self, request: Request) -> Mapping[str, Any]:
        match request.kind:
            case Kind.SCALE:
                return {"before": self.slots.change(request.body)}
            case Kind.PAUSE:
                already = self.paused is not None
                self._pause(self.paused or request)
                return {"after": self._steered.last_open, "already": already, **_since(self.paused)}
            case Kind.RESUME:
                was = _since(self.paused)
                self._pause(None)
                return was
            case Kind.STOP:
                return {"after": self._stop(request)}
            case Kind.RETRY:
                return self._retry(request)
        raise UsageError(
            f"this driver knows no request {request.kind!r}; run the version of txstream that has asked"
        )

    def _pause(self, request: Request | None) -> None:
        self.paused = request
        if request is None:
            self._steered.resume()
        else:
            self._steered.pause()

    def _retry(self, request: Request) -> Mapping[str, Any]:
        if self._topology.dead_letters is None:
            raise UsageError(
                "the code that runs asks for no dead letters, so a record that fails again would end the "
                "run; start it with --dead-letters, or with dead_letters= of the builder"
            )
        components = request.body.get("components")
        self.retries.append(None if components is None else frozenset(components))
        return {"after": self._steered.last_open}

    # --- stop -----------------------------------------------------------------------------------------

    def _stop(self, request: Request) -> Txid | None:
        at = request.at
        if at is None:
            if request.request_id in self._too_old:
                raise UsageError("the driver that was to stop has ended; this one was started after it")
            return self._end_after(self._steered.last_open, request)
        last_open = self._steered.last_open
        if last_open is None:
            raise UsageError("what it does has no txids; leave --at out")
        if type(at) is not int or at < FIRST_TXID:
            raise UsageError(f"a run cannot end after txid {at!r:.100}; txids are whole numbers from 1 on")
        if at < last_open:
            known = "committed already" if at < self._steered.current else "open, and so is what follows"
            raise UsageError(
                f"txid {at} is {known}: the first that the run can end after is txid {last_open}"
            )
        return self._end_after(at, request)

    def _restore_stop(self, now: InForce, before: InForce) -> None:
        """Obey a stop whose txid is not committed yet, and one that came while this driver stood by."""
        stop = now.stopped
        if stop is None:
            return
        at, last_open = stop.at, self._steered.last_open
        is_ahead = last_open is not None and at is not None and at >= self._steered.current
        stood_by = before.stopped is None or before.stopped.request_id != stop.request_id
        if is_ahead or stood_by:
            self._end_after(last_open if at is None or last_open is None else max(at, last_open), stop)

    def _end_after(self, txid: Txid | None, stop: Request) -> Txid | None:
        done = "what is open has ended"
        if txid is not None:
            self._steered.drain(txid)
            done = f"txid {txid} is committed"
        self.stopped_by = stop.asked_by
        log.warning("the run ends when %s, as asked by %s", done, stop.asked_by)
        return txid


def _since(paused: Request | None) -> dict[str, Any]:
    """Return since when the topology is paused, and by whom."""
    if paused is None:
        return {"since": None, "by": None}
    return {"since": paused.asked_at.isoformat(timespec="seconds"), "by": paused.asked_by}
