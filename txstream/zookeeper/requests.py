"""What operators ask of a topology, and what became of it: the values of two znodes.

`requests/asked` holds the requests that no leader has answered yet, oldest first. `requests/answered` is the
leader's: what is in force, accumulated over all granted requests, and the newest answers. One write takes a
request out of the first and puts its answer into the second. So a request is answered once, and a refused one
leaves nothing behind that later ones could trip over.

A request is stored as it was asked. Only the leader judges whether it can be granted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from txstream.core.batch_metas import to_json
from txstream.core.errors import CorruptStateError
from txstream.core.transaction import Txid
from txstream.zookeeper.znode_values import parse_object, take, take_optional, take_time

# An operator waits for seconds; this many answers do not come in that time.
_KEPT_ANSWERS = 40
_LONGEST_REASON = 1_000
_REQUEST_FIELDS = {"request", "kind", "body", "asked_at", "asked_by"}


class Kind(StrEnum):
    """What can be asked, with the body that it takes."""

    SCALE = "scale"  # {component: slots, ...}
    PAUSE = "pause"  # {}
    RESUME = "resume"  # {}
    STOP = "stop"  # {} or {"at": txid}
    RETRY = "retry"  # {"components": [component, ...]}, or {} for all
    TREE = "tree"  # {"txid": txid}: nothing is changed, the answer says it
    STORY = "story"  # {"txid": txid}: as well


@dataclass(frozen=True, slots=True)
class Request:
    """What one operator asks. `kind` is a `Kind`, unless a newer txstream has asked."""

    request_id: str
    kind: str
    body: Mapping[str, Any]
    asked_at: datetime
    asked_by: str

    @property
    def at(self) -> Txid | None:
        """Where a granted stop is to end the run; None for "now"."""
        return self.body.get("at")

    @property
    def shown(self) -> str:
        """Since when and by whom, in words."""
        return f"since {self.asked_at.astimezone():%Y-%m-%d %H:%M:%S} by {self.asked_by}"

    def document(self) -> dict[str, Any]:
        return {
            "request": self.request_id,
            "kind": self.kind,
            "body": dict(self.body),
            "asked_at": _iso(self.asked_at),
            "asked_by": self.asked_by,
        }

    @classmethod
    def from_document(cls, document: Any, path: str) -> Request:
        _check_fields(document, _REQUEST_FIELDS, path)
        return cls(
            take(document, "request", str, path),
            take(document, "kind", str, path),
            take(document, "body", dict, path),
            take_time(document, "asked_at", path),
            take(document, "asked_by", str, path),
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """A leader's answer. `refused` says why the request is refused, or is None if it is in force. `told` is
    what the leader says about it, for display."""

    request_id: str
    refused: str | None
    told: Mapping[str, Any]
    answered_at: datetime

    def document(self) -> dict[str, Any]:
        return {
            "request": self.request_id,
            "refused": self.refused,
            "told": dict(self.told),
            "answered_at": _iso(self.answered_at),
        }

    @classmethod
    def from_document(cls, document: Any, path: str) -> Answer:
        _check_fields(document, {"request", "refused", "told", "answered_at"}, path)
        return cls(
            take(document, "request", str, path),
            take_optional(document, "refused", str, path),
            take(document, "told", dict, path),
            take_time(document, "answered_at", path),
        )


@dataclass(frozen=True, slots=True)
class InForce:
    """What was granted and holds for every leader: the `slots` that were asked for, component by component;
    the pause, while there is one; the newest stop, carried out or not."""

    slots: Mapping[str, int] = field(default_factory=dict)
    paused: Request | None = None
    stopped: Request | None = None

    def after(self, request: Request) -> InForce:
        """Return this, with `request` granted."""
        match request.kind:
            case Kind.SCALE:
                return replace(self, slots={**self.slots, **request.body})
            case Kind.PAUSE:
                return replace(self, paused=self.paused or request)
            case Kind.RESUME:
                return replace(self, paused=None)
            case Kind.STOP:
                return replace(self, stopped=request)
        return self

    def document(self) -> dict[str, Any]:
        return {
            "slots": dict(self.slots),
            "paused": self.paused and self.paused.document(),
            "stopped": self.stopped and self.stopped.document(),
        }

    @classmethod
    def from_document(cls, document: Any, path: str) -> InForce:
        _check_fields(document, {"slots", "paused", "stopped"}, path)
        slots = take(document, "slots", dict, path)
        for component, count in slots.items():
            if type(count) is not int or count < 1:
                raise CorruptStateError(f"{path}: {component!r} cannot have {count!r:.100} slots")
        paused, stopped = (
            None if document[name] is None else Request.from_document(document[name], path)
            for name in ("paused", "stopped")
        )
        if stopped is not None and not (stopped.at is None or type(stopped.at) is int):
            raise CorruptStateError(f"{path}: a stop at {stopped.at!r:.100}, which is no txid")
        return cls(slots, paused, stopped)


@dataclass(frozen=True, slots=True)
class Requests:
    """What a leader obeys: what is in force, and the requests that wait for an answer, oldest first."""

    in_force: InForce = field(default_factory=InForce)
    waiting: tuple[Request, ...] = ()

    @property
    def paused_next(self) -> Request | None:
        """The pause with which the next leader begins: it grants the pauses and resumes that wait."""
        next_in_force = self.in_force
        for request in self.waiting:
            if request.kind in (Kind.PAUSE, Kind.RESUME):
                next_in_force = next_in_force.after(request)
        return next_in_force.paused


@dataclass(frozen=True, slots=True)
class Asked:
    """The value of `requests/asked`."""

    requests: tuple[Request, ...] = ()

    def encode(self) -> bytes:
        return to_json({"requests": [request.document() for request in self.requests]}).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> Asked:
        requests = take(parse_object(data, path, {"requests"}), "requests", list, path)
        return cls(tuple(Request.from_document(request, path) for request in requests))

    def has(self, request_id: str) -> bool:
        return any(request.request_id == request_id for request in self.requests)

    def without(self, request_id: str) -> Asked:
        return Asked(tuple(r for r in self.requests if r.request_id != request_id))


@dataclass(frozen=True, slots=True)
class Answered:
    """The value of `requests/answered`; `answers` are the newest, oldest first."""

    in_force: InForce = field(default_factory=InForce)
    answers: tuple[Answer, ...] = ()

    def encode(self) -> bytes:
        answers = [answer.document() for answer in self.answers]
        return to_json({"in_force": self.in_force.document(), "answers": answers}).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> Answered:
        document = parse_object(data, path, {"in_force", "answers"})
        answers = take(document, "answers", list, path)
        return cls(
            InForce.from_document(document["in_force"], path),
            tuple(Answer.from_document(answer, path) for answer in answers),
        )

    def answer_to(self, request_id: str) -> Answer | None:
        return next((answer for answer in self.answers if answer.request_id == request_id), None)

    def answered(
        self, request: Request, refused: str | None, told: Mapping[str, Any], at: datetime
    ) -> Answered:
        """Return this with one more answer. A granted request is in force."""
        reason = None if refused is None else refused[:_LONGEST_REASON]
        answer = Answer(request.request_id, reason, told, at)
        in_force = self.in_force if refused is not None else self.in_force.after(request)
        return Answered(in_force, (*self.answers, answer)[-_KEPT_ANSWERS:])


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _check_fields(document: Any, fields: set[str], path: str) -> None:
    if not isinstance(document, dict) or set(document) != fields:
        raise CorruptStateError(
            f"{path}: expected an object with the fields {', '.join(sorted(fields))}, found {document!r:.200}"
        )
