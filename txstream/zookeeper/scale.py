"""What was asked about the slots of a topology, and what became of it: the values of two znodes.

`requests/scale` holds the operators' requests that no leader has answered yet, oldest first.
`requests/scaled` is the leader's: the slots in force, accumulated over all that was granted, and the newest
answers. A request leaves the one in the write that brings its answer into the other, so it is answered once,
and a refused one leaves nothing behind that later ones could trip over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from txstream.api.errors import CorruptStateError
from txstream.metas import to_json
from txstream.zookeeper.documents import parse_object, take, take_optional, take_time

# An operator waits for seconds; so many answers do not come meanwhile.
_KEPT_ANSWERS = 40
_LONGEST_REASON = 1_000


@dataclass(frozen=True, slots=True)
class ScaleRequest:
    """One operator's wish: so many slots for each of these components."""

    request_id: str
    slots: Mapping[str, int]
    asked_at: datetime

    def document(self) -> dict[str, Any]:
        return {
            "request": self.request_id,
            "slots": dict(self.slots),
            "asked_at": self.asked_at.isoformat(timespec="seconds"),
        }

    @classmethod
    def from_document(cls, document: Any, path: str) -> ScaleRequest:
        _check_fields(document, {"request", "slots", "asked_at"}, path)
        slots = _take_slots(document, "slots", path)
        if not slots:
            raise CorruptStateError(f"{path}: a request that names no component")
        return cls(take(document, "request", str, path), slots, take_time(document, "asked_at", path))


@dataclass(frozen=True, slots=True)
class ScaleAnswer:
    """A leader's answer: `refused` says why not, or is None when the slots are in force. `before` has the
    slots that the components had until then, as far as the leader told."""

    request_id: str
    refused: str | None
    before: Mapping[str, int]
    answered_at: datetime

    def document(self) -> dict[str, Any]:
        return {
            "request": self.request_id,
            "refused": self.refused,
            "before": dict(self.before),
            "answered_at": self.answered_at.isoformat(timespec="seconds"),
        }

    @classmethod
    def from_document(cls, document: Any, path: str) -> ScaleAnswer:
        _check_fields(document, {"request", "refused", "before", "answered_at"}, path)
        return cls(
            take(document, "request", str, path),
            take_optional(document, "refused", str, path),
            _take_slots(document, "before", path),
            take_time(document, "answered_at", path),
        )


@dataclass(frozen=True, slots=True)
class Scale:
    """What a leader goes by: the `slots` in force, component by component (those that nobody ever asked
    about are not in it), and the requests that wait for an answer, oldest first."""

    slots: Mapping[str, int] = field(default_factory=dict)
    waiting: tuple[ScaleRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredRequests:
    """The value of `requests/scale`."""

    requests: tuple[ScaleRequest, ...] = ()

    def encode(self) -> bytes:
        return to_json({"requests": [request.document() for request in self.requests]}).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> StoredRequests:
        requests = take(parse_object(data, path, {"requests"}), "requests", list, path)
        return cls(tuple(ScaleRequest.from_document(request, path) for request in requests))

    def has(self, request_id: str) -> bool:
        return any(request.request_id == request_id for request in self.requests)

    def without(self, request_id: str) -> StoredRequests:
        return StoredRequests(tuple(r for r in self.requests if r.request_id != request_id))


@dataclass(frozen=True, slots=True)
class StoredScale:
    """The value of `requests/scaled`; `answers` are the newest, oldest first."""

    slots: Mapping[str, int] = field(default_factory=dict)
    answers: tuple[ScaleAnswer, ...] = ()

    def encode(self) -> bytes:
        answers = [answer.document() for answer in self.answers]
        return to_json({"slots": dict(self.slots), "answers": answers}).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> StoredScale:
        document = parse_object(data, path, {"slots", "answers"})
        answers = take(document, "answers", list, path)
        return cls(
            _take_slots(document, "slots", path),
            tuple(ScaleAnswer.from_document(answer, path) for answer in answers),
        )

    def answer_to(self, request_id: str) -> ScaleAnswer | None:
        return next((answer for answer in self.answers if answer.request_id == request_id), None)

    def answered(
        self, request: ScaleRequest, refused: str | None, before: Mapping[str, int], at: datetime
    ) -> StoredScale:
        """This with one more answer; a request that is granted puts its slots in force."""
        told = {component: before[component] for component in request.slots if component in before}
        reason = None if refused is None else refused[:_LONGEST_REASON]
        answer = ScaleAnswer(request.request_id, reason, told, at)
        slots = self.slots if refused is not None else {**self.slots, **request.slots}
        return StoredScale(slots, (*self.answers, answer)[-_KEPT_ANSWERS:])


def _check_fields(document: Any, fields: set[str], path: str) -> None:
    if not isinstance(document, dict) or set(document) != fields:
        raise CorruptStateError(
            f"{path}: expected an object with the fields {', '.join(sorted(fields))}, found {document!r:.200}"
        )


def _take_slots(document: Mapping[str, Any], name: str, path: str) -> dict[str, int]:
    slots = take(document, name, dict, path)
    for component, count in slots.items():
        if type(count) is not int or count < 1:
            raise CorruptStateError(f"{path}: {name!r} gives {component!r} {count!r:.100} slots")
    return slots
