"""What stages hand to each other and to the driver: parcels of tuples, counted, and answers.

An element of a stage's output is a pair of a Spark task and a message. `ANSWER` instead of a Spark task is
for the driver; every stage passes answers on as they are. Each stage sends one message to every Spark task of
the next, also to those that get no tuples: it is how they count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from txstream.api.errors import ShortBatchError
from txstream.digests import TableDigest
from txstream.engine.batch.failures import Failure
from txstream.engine.batch.wire import pack, unpack
from txstream.placement import TaskPlace

ANSWER = -1

# For which Spark task of the next stage, or ANSWER, and the message.
Element = tuple[int, bytes]

# Who sends: a stage's Spark task, or a partition of what a DataFrame bolt computed.
PYTHON = ""


class EdgeName(NamedTuple):
    """A subscription: whose, and to which stream of what."""

    component: str
    source: str
    stream: str


EdgeCount = Counter[EdgeName]


class Parcel(NamedTuple):
    """The address of tuples for one task of a later stage, and where they come from."""

    stage: int
    spark_task: int
    component: str
    task: int
    source: str
    stream: str
    source_task: int


@dataclass(frozen=True)
class Message:
    """What one sender has for one Spark task of the next stage."""

    origin: str
    sender: int
    parcels: Mapping[Parcel, pa.Table]
    failure: Failure | None = None

    def encode(self) -> bytes:
        header: dict[str, Any] = {"origin": self.origin, "from": self.sender}
        if self.failure is not None:
            return pack({**header, "failure": self.failure.to_document()})
        # Counted apart from the tables: what is lost between here and there is noticed.
        header["parcels"] = [[*parcel, table.num_rows] for parcel, table in self.parcels.items()]
        return pack(header, {str(i): table for i, table in enumerate(self.parcels.values())})

    @classmethod
    def decode(cls, message: bytes) -> Message:
        """Raises ShortBatchError when tuples are missing."""
        header, tables = unpack(message)
        if "failure" in header:
            return cls(header["origin"], header["from"], {}, Failure(**header["failure"]))
        parcels: dict[Parcel, pa.Table] = {}
        for i, (*address, sent) in enumerate(header["parcels"]):
            parcel = Parcel(*address)
            table = tables.get(str(i))
            arrived = 0 if table is None else table.num_rows
            if table is None or arrived != sent:
                raise ShortBatchError(
                    f"task {parcel.task} of {parcel.component!r} got {arrived} tuples from task "
                    f"{parcel.source_task} of {parcel.source!r}, which sent {sent}"
                )
            parcels[parcel] = table
        return cls(header["origin"], header["from"], parcels)


@dataclass
class Answer:
    """What one Spark task of one stage tells the driver."""

    records: int = 0
    read_seconds: float = 0.0
    process_seconds: float = 0.0
    deltas: Mapping[str, pa.Table] = field(default_factory=dict)
    emitted: Mapping[tuple[str, str, int], pa.Table] = field(default_factory=dict)
    places: list[TaskPlace] = field(default_factory=list)
    sent: EdgeCount = field(default_factory=Counter)
    received: EdgeCount = field(default_factory=Counter)
    # By component and name of a state that the task's bolts write themselves.
    written: Mapping[tuple[str, str], TableDigest] = field(default_factory=dict)
    failure: Failure | None = None

    def encode(self) -> bytes:
        if self.failure is not None:
            return pack({"failure": self.failure.to_document()})
        header = {
            "stats": [self.records, self.read_seconds, self.process_seconds],
            "deltas": list(self.deltas),
            "emitted": list(self.emitted),
            "places": [astuple(place) for place in self.places],
            "sent": [[*edge, count] for edge, count in self.sent.items()],
            "received": [[*edge, count] for edge, count in self.received.items()],
            "written": [[*state, digest.to_document()] for state, digest in self.written.items()],
        }
        tables = [*self.deltas.values(), *self.emitted.values()]
        return pack(header, {str(i): table for i, table in enumerate(tables)})

    @classmethod
    def decode(cls, message: bytes) -> Answer:
        header, tables = unpack(message)
        if "failure" in header:
            return cls(failure=Failure(**header["failure"]))
        found = iter(tables.values())
        deltas = {component: next(found) for component in header["deltas"]}
        emitted = {(source, stream, task): next(found) for source, stream, task in header["emitted"]}
        records, read_seconds, process_seconds = header["stats"]
        return cls(
            records,
            read_seconds,
            process_seconds,
            deltas=deltas,
            emitted=emitted,
            places=[TaskPlace(*place) for place in header["places"]],
            sent=_counts(header["sent"]),
            received=_counts(header["received"]),
            written={
                (component, name): TableDigest.from_document(digest)
                for component, name, digest in header["written"]
            },
        )


def _counts(rows: Iterable[list[Any]]) -> EdgeCount:
    return Counter({EdgeName(*edge): count for *edge, count in rows})


def open_messages(messages: Iterable[bytes], senders: Mapping[str, int], who: str) -> list[Message]:
    """The messages of all senders, in an order that does not depend on which came first.

    Raises ShortBatchError when one is missing, or came twice.
    """
    opened = sorted(map(Message.decode, messages), key=lambda message: (message.origin, message.sender))
    heard = [(message.origin, message.sender) for message in opened]
    expected = [(origin, sender) for origin in sorted(senders) for sender in range(senders[origin])]
    if heard != expected:
        raise ShortBatchError(
            f"{who} heard from {len(set(heard))} of {len(expected)} Spark tasks before it"
            + (", and from some twice" if len(set(heard)) < len(heard) else "")
        )
    return opened


def address_messages(
    origin: str, sender: int, width: int, parcels: Mapping[Parcel, pa.Table]
) -> Iterator[Element]:
    """One message for every Spark task of the next stage, which is `width` wide."""
    sorted_out: list[dict[Parcel, pa.Table]] = [{} for _ in range(width)]
    for parcel, table in parcels.items():
        # For the next stage the address fits; what is for a later one may be carried by any.
        sorted_out[parcel.spark_task % width][parcel] = table
    for target, selected in enumerate(sorted_out):
        yield target, Message(origin, sender, selected).encode()


def address_failure(origin: str, sender: int, width: int, failure: Failure) -> Iterator[Element]:
    """Tell the driver, and every Spark task of the next stage, so that none runs on half of a batch."""
    yield ANSWER, Answer(failure=failure).encode()
    message = Message(origin, sender, {}, failure).encode()
    for target in range(width):
        yield target, message
