"""Sends what waits in outboxes to where it goes, in the order of txids, while a topology runs.

Invariants. Only rows of batches that every database has committed are sent. A topic's rows of one txid are
acknowledged before the first row of a later txid is sent, and none is left out: how far it has come is noted
after that, and rows are deleted after the note. A driver that dies in between sends again what is not noted:
at least once. A lost broker delays the rows, which stay in their table; it never delays a batch.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.core.errors import StateTableError, TopologyError
from txstream.core.transaction import FIRST_TXID, Txid
from txstream.engine.start.companions import Leading
from txstream.plugins.outbox.changes import CONTROL_SUFFIX, ChangeTopic, recorder, topic_of
from txstream.plugins.outbox.follower import Follower
from txstream.plugins.outbox.sink import KafkaSinkBolt, sink_place, sink_record
from txstream.state import BatchRecord, StateBackend
from txstream.state.reading import StoredRow
from txstream.zookeeper import SENT, ProgressStore

_LOOK_SECONDS = 0.01
_NOTE_SECONDS = 1.0
_ROWS_AT_ONCE = 10_000
_LEDGER_ROWS_AT_ONCE = 1_000
_GAPS = 10
"""If more txids in between have no rows for the topic, ledger rows are read one by one."""

Headers = Sequence[tuple[str, bytes]]
Record = tuple[bytes | None, bytes | None, Headers]
"""Key, value and headers."""


class TopicSender(Protocol):
    """A connection to a topic. Whatever it raises is taken for an outage."""

    def send_all(self, records: Sequence[Record], txid: Txid, to_each: Headers | None = None) -> None:
        """Append the records of a txid, those of a key in this order, and a record of these headers to each
        partition; return once the broker has acknowledged them all. It may leave out those of a txid that it
        knows to be there."""

    def close(self) -> None:
        """Close the connection; what is not acknowledged is given up."""


class Outbox(ABC):
    """What waits to be sent to one place, under the `name` by which it is noted how far that is. `where` is
    the place, in messages."""

    def __init__(self, name: str, where: str) -> None:
        self.name, self.where = name, where

    @abstractmethod
    def connect(self) -> Any:
        """Return a connection to the place, with a method `close`; outboxes of one place share it. Whatever
        it raises is taken for an outage, as in `send`."""

    @abstractmethod
    def waiting(self, after: Txid, before: Txid) -> tuple[Sequence[tuple[Txid, Any]], Txid]:
        """Return what is to be sent of txids between these two, which every database has committed, in their
        order, and the last txid up to which this is all."""

    @abstractmethod
    def send(self, sender: Any, txid: Txid, what: Any) -> None:
        """Send what waits of a txid; return once it is all there, for good."""

    def forget(self, sent: Txid) -> None:  # noqa: B027 - not everything is stored only to be sent
        """Called once it is noted that what waited up to this txid is sent."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rows of one txid, and the txid's row in the ledger, if that still has it."""

    rows: Sequence[StoredRow]
    batch: BatchRecord | None


class TableOutbox(Outbox):
    """A table of rows that are records of a topic. `record` makes key and value of a row, and rows of one
    txid are sorted by `place`. With `marks`, a rewind, which puts no row there, is told by a record in each
    partition."""

    def __init__(
        self,
        topology: str,
        table: str,
        where: str,
        databases: Sequence[StateBackend],
        connect: Callable[[], Any],
        record: Callable[[StoredRow], tuple[bytes | None, bytes | None]] = sink_record,
        place: Callable[[StoredRow], Any] = sink_place,
        *,
        marks: bool = False,
    ) -> None:
        super().__init__(table, where)
        self._topology = topology
        self._databases = databases
        self._connect, self._record, self._place = connect, record, place
        self._marks = marks
        self._rewinds: Mapping[Txid, BatchRecord] | None = None

    def connect(self) -> Any:
        return self._connect()

    def waiting(self, after: Txid, before: Txid) -> tuple[list[tuple[Txid, Waiting]], Txid]:
        if self._rewinds is None:
            self._rewinds = self._all_rewinds(after, before)
        found: dict[Txid, list[StoredRow]] = {}
        last, count = Txid(before - 1), 0
        with self._database.read_state(self._topology) as reading:
            written = reading.written_since(self.name, after + 1)
            for txid, rows in itertools.groupby(written, key=lambda row: Txid(row.txid or 0)):
                if txid >= before:
                    break
                if count >= _ROWS_AT_ONCE:
                    last = max(found)
                    break
                found[txid] = sorted(rows, key=self._place)
                count += len(found[txid])
        batches = dict(self._batches([*found]))
        batches |= {txid: row for txid, row in self._rewinds.items() if after < txid <= last}
        txids = sorted({*found, *batches})
        return [(txid, Waiting(found.get(txid, ()), batches.get(txid))) for txid in txids], last

    def _all_rewinds(self, after: Txid, before: Txid) -> Mapping[Txid, BatchRecord]:
        """Return the ledger's rows of rewinds between these two txids. It is looked through once: nobody
        rewinds a topology that runs."""
        found: dict[Txid, BatchRecord] = {}
        while before - 1 > after:
            limit = min(before - 1 - after, _LEDGER_ROWS_AT_ONCE)
            rows = self._database.batches(self._topology, limit=limit, before=before)
            if not rows:
                break
            found |= {row.txid: row for row in rows if row.txid > after and rewound_to(row) is not None}
            before = rows[0].txid
        return found

    def _batches(self, txids: Sequence[Txid]) -> Mapping[Txid, BatchRecord]:
        """Return the ledger's rows of these txids, of those that it still has."""
        if not txids:
            return {}
        span = txids[-1] + 1 - txids[0]
        if span <= _GAPS * len(txids):
            rows = self._database.batches(self._topology, limit=span, before=txids[-1] + 1)
        else:
            looked_up = (self._database.batch(self._topology, txid) for txid in txids)
            rows = [row for row in looked_up if row is not None]
        return {row.txid: row for row in rows}

    def send(self, sender: Any, txid: Txid, what: Waiting) -> None:
        topic: TopicSender = sender
        headers = [("txstream-topology", self._topology.encode()), ("txstream-txid", str(txid).encode())]
        if what.batch is not None:
            headers.append(("txstream-attempt", str(what.batch.attempt).encode()))
        records = [(*self._record(row), headers) for row in what.rows]
        if (to := rewound_to(what.batch)) is None:
            topic.send_all(records, txid)
        else:
            headers.append(("txstream-rewind", str(to).encode()))
            topic.send_all(records, txid, headers if self._marks else None)

    def forget(self, sent: Txid) -> None:
        # The rows of the last txid stay: `fsck` counts the rows of the last batch.
        self._database.drop_used(self._topology, self.name, sent)

    @cached_property
    def _database(self) -> StateBackend:
        for database in self._databases:
            with database.read_state(self._topology) as reading:
                if any(found.name == self.name for found in reading.tables()):
                    return database
        raise StateTableError(f"table {self.name!r} is in no database of topology {self._topology!r}")


def rewound_to(batch: BatchRecord | None) -> Txid | None:
    """Return the txid that a batch has put all states back to; None if it is no rewind."""
    details = {} if batch is None else batch.details
    return Txid(details["rewind"]["to"]) if details.get("path") == "rewind" else None


def result_topics(leading: Leading) -> OutboxFollower | None:
    """Return what sends the outboxes of the topology's sinks and the changes of its tables, if any leave."""
    topology, store = leading.topology, leading.store
    outboxes: list[Outbox] = []
    goals: list[ChangeTopic] = []

    def leaves(table: str, goal: ChangeTopic, *how: Any, marks: bool = False) -> None:
        if goal.exactly_once:
            _refuse_loop(topology, f"{goal.topic}{CONTROL_SUFFIX}")
        if any(one.topic == goal.topic and (one.exactly_once or goal.exactly_once) for one in goals):
            raise TopologyError(
                f"topology {topology.id!r} fills topic {goal.topic!r} from two tables, and exactly once: a "
                f"marker there tells of one of them. Give each a topic of its own"
            )
        goals.append(goal)
        connect = partial(_connect_once if goal.exactly_once else _connect, leading, goal.topic)
        where = f"topic {goal.topic}"
        outboxes.append(TableOutbox(topology.id, table, where, leading.databases, connect, *how, marks=marks))

    for bolt in (one.instance for one in topology.components):
        if isinstance(bolt, KafkaSinkBolt):
            leaves(bolt.state.table, ChangeTopic(bolt.topic, bolt.exactly_once), marks=True)
    for state in _states(topology):
        goal = topic_of(state.changes_to)
        if goal is not None and state.changes is not None:
            leaves(state.changes.table, goal, recorder(goal, state, leading.context), _any_order)
    if not outboxes:
        return None
    return OutboxFollower(
        topology.id, outboxes, leading.current, partial(noted, store), partial(note, store, topology)
    )


_NOTING = threading.Lock()


def noted(store: ProgressStore) -> Mapping[str, Txid]:
    """Return the last txid of each table whose rows have all left."""
    return store.notes.get(SENT) or {}


def note(store: ProgressStore, topology: Topology, sent: Mapping[str, Txid]) -> None:
    """Store it for some of the topology's tables; each follower has its own."""
    with _NOTING:
        tables = {state.table for state in _states(topology)}
        tables |= {state.changes.table for state in _states(topology) if state.changes is not None}
        others = {table: txid for table, txid in noted(store).items() if table in tables}
        store.notes.put(SENT, others | dict(sent))


def _states(topology: Topology) -> list[SqlState]:
    return [*(bolt.state for bolt, _ in topology.states), *(use.state for use in topology.map_states)]


def _refuse_loop(topology: Topology, control: str) -> None:
    """Raise TopologyError if the topology reads this topic: each txid would make it read another one."""
    from txstream.spouts.kafka import KafkaSource

    source = topology.spout.source
    if isinstance(source, KafkaSource) and source.selection.reads(control):
        raise TopologyError(
            f"topology {topology.id!r} reads topic {control!r}, which has the markers of what it sends; "
            f"leave it out of the topics of its source, or choose another name for the topic of the changes"
        )


def _any_order(_row: StoredRow) -> int:
    return 0  # a txid has one row of each key


def _connect(leading: Leading, topic: str) -> TopicSender:
    """Connect to a topic of the source's cluster, or of the run's if the source is another one."""
    from txstream.spouts.kafka.letter_topic import KafkaLetterTopic

    return KafkaLetterTopic(topic, *_reached(leading, topic))


def _connect_once(leading: Leading, topic: str) -> TopicSender:
    """The same, for a topic that gets each txid exactly once."""
    from txstream.spouts.kafka.transactional_topic import TransactionalTopic

    identity = leading.store.read_identity()
    if identity is None:
        raise StateTableError(f"topology {leading.topology.id!r} has no identity: it was deleted")
    # Who connects shuts out who was connected, so a driver that was succeeded must not: this raises then.
    note(leading.store, leading.topology, {})
    name = f"txstream-{leading.topology.id}-{topic}"
    return TransactionalTopic(
        topic, f"{topic}{CONTROL_SUFFIX}", name, identity.uuid, *_reached(leading, topic)
    )


def _reached(leading: Leading, topic: str) -> tuple[str, Mapping[str, Any], float]:
    from txstream.spouts.kafka import KafkaSource

    source, context = leading.topology.spout.source, leading.context
    if not isinstance(source, KafkaSource):
        source = KafkaSource(topic)
    return source.address(context), source.client_options, context.connect_timeout_seconds


class OutboxFollower(Follower):
    """Sends the outboxes of one life of a topology, `what` in messages. `current` returns the txid that
    commits next, `read_sent` the last txid of each outbox whose rows are all sent, and `note_sent` stores
    that."""

    def __init__(
        self,
        topology: str,
        outboxes: Sequence[Outbox],
        current: Callable[[], Txid],
        read_sent: Callable[[], Mapping[str, Txid]],
        note_sent: Callable[[Mapping[str, Txid]], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        what: str = "results",
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        super().__init__(topology, what, ", ".join(one.where for one in outboxes), look_seconds)
        self._outboxes = outboxes
        self._current = current
        self._read_sent = read_sent
        self._note_sent = note_sent
        self._clock = clock
        self._sent: dict[str, Txid] | None = None
        self._noted: dict[str, Txid] = {}
        self._note_at = clock()
        self._looked: Txid | None = None
        self._senders: dict[str, Any] = {}

    def send_committed(self, *, is_last: bool = False) -> None:
        current = self._current()
        if self._sent is None:
            noted = self._read_sent()  # by a leader that may not have come to delete what it had sent
            self._sent = {one.name: noted.get(one.name, Txid(FIRST_TXID - 1)) for one in self._outboxes}
        if current != self._looked:
            for one in self._outboxes:
                self._send(one, self._sent, current)
            self._looked = current
        if self._sent != self._noted and (is_last or self._clock() >= self._note_at):
            self._note(self._sent)

    def _send(self, outbox: Outbox, sent: dict[str, Txid], current: Txid) -> None:
        last = sent[outbox.name]
        while last + 1 < current:
            found, last = outbox.waiting(last, current)
            for txid, what in found:
                outbox.send(self._sender(outbox), txid, what)
                sent[outbox.name] = txid
            sent[outbox.name] = last
            if last + 1 < current and self._clock() >= self._note_at:
                self._note(sent)  # of a long backlog, no more than this is sent again

    def _note(self, sent: Mapping[str, Txid]) -> None:
        self._note_sent(sent)
        self._noted = dict(sent)
        self._note_at = self._clock() + _NOTE_SECONDS
        for one in self._outboxes:
            one.forget(sent[one.name])

    def _sender(self, outbox: Outbox) -> Any:
        if outbox.where not in self._senders:
            self._senders[outbox.where] = outbox.connect()
        return self._senders[outbox.where]

    def disconnect(self) -> None:
        senders, self._senders = self._senders, {}
        for sender in senders.values():
            with contextlib.suppress(Exception):  # its broker is away; the next connection is another one
                sender.close()
