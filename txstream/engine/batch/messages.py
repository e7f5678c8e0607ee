"""What the driver, stages and executors send each other: work orders, counted parcels of tuples, answers.

Work orders are JSON, because they travel as a Spark local property, which is text. Everything else is one
byte string: the length of a JSON header, the header, then Arrow IPC streams in the order that the header
names. Each stream begins at a multiple of 8 bytes, because Arrow reads it in place, and columns that are not
aligned cost time and a warning.

An element of a stage's output is a pair of a Spark task and a message for it. With `ANSWER` instead of a
Spark task the message is for the driver; every stage passes answers on unchanged. Each Spark task of a stage
sends one message to every Spark task of the next, even without tuples: receivers count their senders.
"""

from __future__ import annotations

import base64
import json
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from txstream.core.dead_letters import DeadLetter
from txstream.core.digests import TableDigest
from txstream.core.errors import ShortBatchError
from txstream.core.placement import TaskPlace
from txstream.core.readings import NOTHING_READ, Reading
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.core.wording import counted
from txstream.engine.batch.edge_counts import EdgeCount, EdgeName, counts_of
from txstream.engine.batch.executor_failures import Failure
from txstream.engine.batch.sought import Sought

_LENGTH = struct.Struct(">I")
_ALIGNMENT_BYTES = 8
_BYTES = "key", "value", "headers"  # of a dead letter


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """One attempt of one batch: `assignments[i]` are the partitions of Spark task i, with metas as JSON.

    `slots` are those that an operator has changed since the topology was started. The order holds them, so
    that every Spark task of an attempt, even one that is computed again, sees the same layout. `committed` is
    the attempt that was committed last; it is set only in the commit phase, and only if it is known.
    `excluded` are the offsets, by partition, of the records that the batch leaves out. `letters` are the
    dead letters that it retries; the first Spark task decodes them. `sought` is what a
    search looks for instead of records that fail. `horizons` are those of its metas. `ahead` is what the
    planner has read already of the ranges of the first and only Spark task.

    Up to `spare` records may be left out by the Spark tasks themselves (`leaving_out`). In the commit phase
    these are known: `left_out` are partition, offset and component of each, and `lineages` those of the
    processing phase's last messages.

    `known` are the fingerprints of what batches before have fetched (`Reading.fetched`).
    """

    attempt: TransactionAttempt
    width: int
    assignments: Sequence[Mapping[str, Any]]
    slots: Mapping[str, int] = field(default_factory=dict)
    committed: TransactionAttempt | None = None
    excluded: Mapping[str, Sequence[int]] = field(default_factory=dict)
    letters: Sequence[DeadLetter] = ()
    sought: Sought | None = None
    horizons: Mapping[str, Any] = field(default_factory=dict)
    ahead: Mapping[str, bytes] = field(default_factory=dict)
    spare: int = 0
    left_out: Sequence[tuple[str, int, str]] = ()
    lineages: Mapping[str, str] | None = None
    known: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(
            {
                "txid": self.attempt.txid,
                "attempt": self.attempt.attempt,
                "width": self.width,
                "assignments": self.assignments,
                "slots": dict(self.slots),
                "committed": self.committed and [self.committed.txid, self.committed.attempt],
                "excluded": dict(self.excluded),
                "letters": [_as_document(letter) for letter in self.letters],
                "sought": self.sought,
                "horizons": dict(self.horizons),
                "ahead": {name: base64.b64encode(data).decode() for name, data in self.ahead.items()},
                "spare": self.spare,
                "left_out": self.left_out,
                "lineages": self.lineages,
                "known": dict(self.known),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> WorkOrder:
        document = json.loads(text)
        attempt = TransactionAttempt(Txid(document["txid"]), AttemptId(document["attempt"]))
        committed = document["committed"]
        return cls(
            attempt,
            document["width"],
            document["assignments"],
            document["slots"],
            None if committed is None else TransactionAttempt(*committed),
            document["excluded"],
            tuple(_letter_of(letter) for letter in document["letters"]),
            None if document["sought"] is None else Sought(*document["sought"]),
            document["horizons"],
            {name: base64.b64decode(data) for name, data in document["ahead"].items()},
            document["spare"],
            tuple((partition, offset, component) for partition, offset, component in document["left_out"]),
            document["lineages"],
            document["known"],
        )


def _as_document(letter: DeadLetter) -> dict[str, Any]:
    given = {name: getattr(letter, name) for name in _BYTES}
    texts = {name: None if one is None else base64.b64encode(one).decode() for name, one in given.items()}
    return asdict(letter) | texts


def _letter_of(document: Mapping[str, Any]) -> DeadLetter:
    texts = {name: document[name] for name in _BYTES}
    given = {name: None if one is None else base64.b64decode(one) for name, one in texts.items()}
    return DeadLetter(**{**document, **given})


def pack(
    header: Mapping[str, Any],
    tables: Mapping[str, pa.Table] | None = None,
    layout: list[tuple[str, int]] | None = None,
) -> bytes:
    """Return a message: a JSON header and named Arrow tables. `layout` gets the bytes of each table."""
    blobs: list[bytes] = []
    layout = [] if layout is None else layout
    for name, table in (tables or {}).items():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        blob = sink.getvalue().to_pybytes()
        blobs.append(blob + bytes(-len(blob) % _ALIGNMENT_BYTES))
        layout.append((name, len(blobs[-1])))
    head = json.dumps({**header, "tables": layout}).encode()
    head += b" " * (-(_LENGTH.size + len(head)) % _ALIGNMENT_BYTES)
    return b"".join((_LENGTH.pack(len(head)), head, *blobs))


def unpack(message: bytes) -> tuple[dict[str, Any], dict[str, pa.Table]]:
    """The inverse of `pack`, without copying the tables."""
    view = memoryview(message)
    (length,) = _LENGTH.unpack_from(view)
    position = _LENGTH.size + length
    header: dict[str, Any] = json.loads(bytes(view[_LENGTH.size : position]))
    tables: dict[str, pa.Table] = {}
    for name, size in header.pop("tables"):
        tables[name] = pa.ipc.open_stream(pa.py_buffer(view[position : position + size])).read_all()
        position += size
    return header, tables


ANSWER = -1

# A Spark task of the next stage, or ANSWER, and the message for it.
Element = tuple[int, bytes]

# The origin of a message: a stage's Spark tasks, or the driver, for spouts that live there. What a DataFrame
# bolt computed has the origin "component.stream".
PYTHON = ""
DRIVER = "driver"


class Parcel(NamedTuple):
    """The address of tuples for one task of a later stage, and where they come from."""

    stage: int
    spark_task: int
    component: str
    task: int
    source: str
    stream: str
    source_task: int

    @property
    def edge(self) -> EdgeName:
        return EdgeName(self.component, self.source, self.stream)


@dataclass(frozen=True)
class Message:
    """What one sender sends to one Spark task of the next stage. `lineage` says what was left out of it."""

    origin: str
    sender: int
    parcels: Mapping[Parcel, pa.Table]
    failure: Failure | None = None
    lineage: str = ""

    def encode(self, sizes: EdgeCount | None = None) -> bytes:
        """Return the message. Its bytes are added to `sizes`, by edge."""
        header: dict[str, Any] = {"origin": self.origin, "from": self.sender}
        if self.failure is not None:
            return pack({**header, "failure": self.failure.to_document()})
        # Rows are counted apart from the tables, so that a loss on the way is noticed.
        header["parcels"] = [[*parcel, table.num_rows] for parcel, table in self.parcels.items()]
        if self.lineage:
            header["lineage"] = self.lineage
        layout: list[tuple[str, int]] = []
        message = pack(header, {str(i): table for i, table in enumerate(self.parcels.values())}, layout)
        if sizes is not None:
            for parcel, (_, size) in zip(self.parcels, layout, strict=True):
                sizes[parcel.edge] += size
        return message

    @classmethod
    def decode(cls, message: bytes) -> Message:
        """The inverse of `encode`. Raises ShortBatchError when tuples are missing."""
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
                    f"task {parcel.task} of {parcel.component!r} got {counted(arrived, 'tuple')} from task "
                    f"{parcel.source_task} of {parcel.source!r}, which sent {sent}"
                )
            parcels[parcel] = table
        return cls(header["origin"], header["from"], parcels, lineage=header.get("lineage", ""))


@dataclass
class Tracked:
    """What a Spark task reports of the trees that its tuples belong to. Roots and values are numpy arrays of
    64-bit numbers. `acks` has each root once, with the XOR of what was sent and acked; `held` has, by
    component, the roots of tuples that it neither acked nor failed."""

    acks: tuple[Any, Any] | None = None
    failed_roots: list[Any] = field(default_factory=list)
    held: dict[str, list[Any]] = field(default_factory=dict)
    acked: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)

    def header(self) -> dict[str, Any]:
        reasons = [[*reason, times] for reason, times in self.reasons.items()]
        return {"acked": self.acked, "failed": self.failed, "reasons": reasons, "held": list(self.held)}

    def tables(self) -> dict[str, pa.Table]:
        tables = {f"held {component}": _root_table(roots) for component, roots in self.held.items()}
        if self.acks is not None:
            tables["acks"] = pa.table(dict(zip(("root", "value"), map(pa.array, self.acks), strict=True)))
        return {**tables, "failed roots": _root_table(self.failed_roots)}

    @classmethod
    def from_header(cls, header: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> Tracked:
        acks = tables.get("acks")
        return cls(
            None if acks is None else (acks["root"].to_numpy(), acks["value"].to_numpy()),
            [tables["failed roots"]["root"].to_numpy()],
            {component: [tables[f"held {component}"]["root"].to_numpy()] for component in header["held"]},
            Counter(header["acked"]),
            Counter(header["failed"]),
            Counter({(component, reason): times for component, reason, times in header["reasons"]}),
        )


def _root_table(roots: list[Any]) -> pa.Table:
    return pa.table({"root": pa.chunked_array([pa.array(some) for some in roots], pa.uint64())})


class LeftOut(NamedTuple):
    """A record that a Spark task has left out, and how it failed. `row` is the record as the source has it
    stored, if the task that read it had it at hand."""

    partition: str
    offset: int
    failure: Failure
    row: Mapping[str, Any] | None = None

    @property
    def known_as(self) -> tuple[str, int, str]:
        """What a work order says of it."""
        return self.partition, self.offset, self.failure.component


@dataclass
class Answer:
    """What one Spark task of one stage reports to the driver. `sender` is what its messages have, and
    `heard` are the lineages of the messages that it got, by their senders, as far as they have one. Of
    partitions in `gaps` nobody knows which record a row is. `stored` has a row for each of `left_out`."""

    records: int = 0
    read_seconds: float = 0.0
    process_seconds: float = 0.0
    deltas: Mapping[str, pa.Table] = field(default_factory=dict)
    emitted: Mapping[tuple[str, str, int], pa.Table] = field(default_factory=dict)
    places: list[TaskPlace] = field(default_factory=list)
    sent: EdgeCount = field(default_factory=Counter)
    received: EdgeCount = field(default_factory=Counter)
    sending_ns: EdgeCount = field(default_factory=Counter)
    taking_ns: EdgeCount = field(default_factory=Counter)
    # By component and name of state, for states that bolts write themselves.
    written: Mapping[tuple[str, str], TableDigest] = field(default_factory=dict)
    tracked: Tracked | None = None
    failure: Failure | None = None
    stage: int = 0
    sender: int = 0
    left_out: Sequence[LeftOut] = ()
    lineage: str = ""
    heard: Mapping[str, str] = field(default_factory=dict)
    gaps: Sequence[str] = ()
    reading: Reading = NOTHING_READ
    stored: pa.Table | None = None

    def encode(self) -> bytes:
        if self.failure is not None:
            return pack({"failure": self.failure.to_document()})
        tracked = self.tracked
        header = {
            "tracked": None if tracked is None else tracked.header(),
            "stats": [self.records, self.read_seconds, self.process_seconds],
            "deltas": list(self.deltas),
            "emitted": list(self.emitted),
            "places": self.places,
            "sent": [[*edge, count] for edge, count in self.sent.items()],
            "received": [[*edge, count] for edge, count in self.received.items()],
            "sending_ns": [[*edge, spent] for edge, spent in self.sending_ns.items()],
            "taking_ns": [[*edge, spent] for edge, spent in self.taking_ns.items()],
            "written": [[*state, digest.to_document()] for state, digest in self.written.items()],
            "from": [self.stage, self.sender],
            "left_out": [[*one[:2], one.failure.to_document()] for one in self.left_out],
            "lineage": [self.lineage, self.heard],
            "gaps": list(self.gaps),
            "reading": self.reading.to_document(),
        }
        tables = [*self.deltas.values(), *self.emitted.values()]
        named = {str(i): table for i, table in enumerate(tables)}
        if self.stored is not None:
            named["stored"] = self.stored
        return pack(header, named if tracked is None else {**named, **tracked.tables()})

    @classmethod
    def decode(cls, message: bytes) -> Answer:
        header, tables = unpack(message)
        if "failure" in header:
            return cls(failure=Failure(**header["failure"]))
        stored = tables.pop("stored", None)
        rows = [None] * len(header["left_out"]) if stored is None else stored.to_pylist()
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
            sent=counts_of(header["sent"]),
            received=counts_of(header["received"]),
            sending_ns=counts_of(header["sending_ns"]),
            taking_ns=counts_of(header["taking_ns"]),
            written={
                (component, name): TableDigest.from_document(digest)
                for component, name, digest in header["written"]
            },
            tracked=Tracked.from_header(header["tracked"], tables) if header["tracked"] else None,
            stage=header["from"][0],
            sender=header["from"][1],
            left_out=[
                LeftOut(name, at, Failure(**failure), row)
                for (name, at, failure), row in zip(header["left_out"], rows, strict=True)
            ],
            lineage=header["lineage"][0],
            heard=header["lineage"][1],
            gaps=header["gaps"],
            reading=Reading.from_document(header["reading"]),
        )


def open_messages(messages: Iterable[bytes], senders: Mapping[str, int], who: str) -> list[Message]:
    """Return the messages of all senders, in an order that does not depend on which came first.

    Raises ShortBatchError when a message is missing or came twice.
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
    origin: str,
    sender: int,
    width: int,
    parcels: Mapping[Parcel, pa.Table],
    sizes: EdgeCount | None = None,
    lineage: str = "",
) -> Iterator[Element]:
    """One message for every Spark task of the next stage, which is `width` wide. `sizes` as in `encode`."""
    sorted_out: list[dict[Parcel, pa.Table]] = [{} for _ in range(width)]
    for parcel, table in parcels.items():
        # The address is a Spark task of the next stage. Any of them may carry a parcel for a later stage.
        sorted_out[parcel.spark_task % width][parcel] = table
    for target, selected in enumerate(sorted_out):
        yield target, Message(origin, sender, selected, lineage=lineage).encode(sizes)


def address_failure(origin: str, sender: int, width: int, failure: Failure) -> Iterator[Element]:
    """Tell the driver, and every Spark task of the next stage, so that none runs on half of a batch."""
    yield ANSWER, Answer(failure=failure).encode()
    message = Message(origin, sender, {}, failure).encode()
    for target in range(width):
        yield target, message
