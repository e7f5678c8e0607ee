"""Sends the rows of outboxes to their topics, in the order of txids, while a topology runs.

Invariants. Only rows of batches that every database has committed are sent. A topic's rows of one txid are
acknowledged before the first row of a later txid is sent, and none is left out: how far it has come is noted
after that, and rows are deleted after the note. A driver that dies in between sends again what is not noted:
at least once. A lost broker delays the rows, which stay in their table; it never delays a batch.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.core.errors import StateTableError, TopologyError
from txstream.core.transaction import FIRST_TXID, AttemptId, Txid
from txstream.engine.start.companions import Leading
from txstream.plugins.outbox.changes import CONTROL_SUFFIX, recorder, topic_of
from txstream.plugins.outbox.follower import Follower
from txstream.plugins.outbox.sink import KafkaSinkBolt, sink_place, sink_record
from txstream.state import StateBackend
from txstream.state.reading import StoredRow
from txstream.zookeeper import SENT, ProgressStore

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.01
_NOTE_SECONDS = 1.0
_ROWS_AT_ONCE = 10_000
_GAPS = 10
"""If more txids in between have no rows for the topic, ledger rows are read one by one."""

Record = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes]]]
"""Key, value and headers."""


class TopicSender(Protocol):
    """A connection to a topic. Whatever it raises is taken for an outage."""

    def send_all(self, records: Sequence[Record], txid: Txid) -> None:
        """Append the records of a txid, those of a key in this order; return once the broker has acknowledged
        them all. It may leave out those of a txid that it knows to be there."""

    def close(self) -> None:
        """Close the connection; what is not acknowledged is given up."""


@dataclass(frozen=True)
class Outbox:
    """A table whose rows go to a topic, or to something else of a name, and how to connect to that."""

    table: str
    topic: str
    connect: Callable[[], Any]
    record: Callable[[StoredRow], tuple[bytes | None, bytes | None]] = sink_record
    place: Callable[[StoredRow], Any] = sink_place
    """What the rows of one txid are sorted by."""


def result_topics(leading: Leading) -> OutboxFollower | None:
    """Return what sends the outboxes of the topology's sinks and the changes of its tables, if any leave."""
    topology, store = leading.topology, leading.store
    outboxes = []
    for bolt in (one.instance for one in topology.components):
        if isinstance(bolt, KafkaSinkBolt):
            connect = partial(_connect, leading, bolt.topic)
            outboxes.append(Outbox(bolt.state.table, bolt.topic, connect))
    for state in _states(topology):
        goal = topic_of(state.changes_to)
        if goal is not None and state.changes is not None:
            if goal.exactly_once:
                _refuse_loop(topology, f"{goal.topic}{CONTROL_SUFFIX}")
            connect = partial(_connect_once if goal.exactly_once else _connect, leading, goal.topic)
            record = recorder(goal, state, leading.context)
            outboxes.append(Outbox(state.changes.table, goal.topic, connect, record, _any_order))
    if not outboxes:
        return None
    return OutboxFollower(
        topology.id,
        outboxes,
        leading.databases,
        leading.current,
        partial(noted, store),
        partial(note, store, topology),
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
    """Sends the outboxes of one life of a topology. `current` returns the txid that commits next, `read_sent`
    the last txid of each table whose rows are all sent, and `note_sent` stores that."""

    what_leaves: ClassVar[str] = "results"
    goes_to: ClassVar[str] = "topic"

    def __init__(
        self,
        topology: str,
        outboxes: Sequence[Outbox],
        databases: Sequence[StateBackend],
        current: Callable[[], Txid],
        read_sent: Callable[[], Mapping[str, Txid]],
        note_sent: Callable[[Mapping[str, Txid]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        topics = ", ".join(one.topic for one in outboxes)
        super().__init__(topology, self.what_leaves, f"{self.goes_to} {topics}".lstrip(), _LOOK_SECONDS)
        self._topology = topology
        self._outboxes = outboxes
        self._databases = databases
        self._current = current
        self._read_sent = read_sent
        self._note_sent = note_sent
        self._clock = clock
        self._sent: dict[str, Txid] | None = None
        self._noted: dict[str, Txid] = {}
        self._note_at = clock()
        self._looked: Txid | None = None
        self._places: dict[str, StateBackend] = {}
        self._senders: dict[str, Any] = {}

    def send_committed(self, *, is_last: bool = False) -> None:
        current = self._current()
        if self._sent is None:
            noted = self._read_sent()  # by a leader that may not have come to delete what it had sent
            self._sent = {one.table: noted.get(one.table, Txid(FIRST_TXID - 1)) for one in self._outboxes}
        if current != self._looked:
            for one in self._outboxes:
                self._send(one, self._sent, current)
            self._looked = current
        if self._sent != self._noted and (is_last or self._clock() >= self._note_at):
            self._note(self._sent)

    def _send(self, outbox: Outbox, sent: dict[str, Txid], current: Txid) -> None:
        last = sent[outbox.table]
        database = self._database(outbox.table)
        while last + 1 < current:
            found, last = self._committed(database, outbox, last, current)
            attempts = self._attempts(database, found)
            for txid, rows in found:
                self._send_rows(outbox, database, txid, rows, attempts.get(txid))
                sent[outbox.table] = txid
            sent[outbox.table] = last
            if last + 1 < current and self._clock() >= self._note_at:
                self._note(sent)  # of a long backlog, no more than this is sent again

    def _send_rows(
        self,
        outbox: Outbox,
        _database: StateBackend,
        txid: Txid,
        rows: Sequence[StoredRow],
        attempt: AttemptId | None,
    ) -> None:
        """Send the rows of one txid; return once they are all there, for good."""
        self._sender(outbox).send_all(self._records(outbox, txid, rows, attempt), txid)

    def _committed(
        self, database: StateBackend, outbox: Outbox, after: Txid, before: Txid
    ) -> tuple[list[tuple[Txid, list[StoredRow]]], Txid]:
        """Return rows of whole txids between these two, sorted, not many more than a bound, and the last txid
        up to which these are all."""
        found: list[tuple[Txid, list[StoredRow]]] = []
        with database.read_state(self._topology) as reading:
            count, of_txid = (
                0,
                itertools.groupby(
                    reading.written_since(outbox.table, after + 1), key=lambda row: Txid(row.txid or 0)
                ),
            )
            for txid, rows in of_txid:
                if txid >= before:
                    break
                if count >= _ROWS_AT_ONCE:
                    return found, found[-1][0]
                found.append((txid, sorted(rows, key=outbox.place)))
                count += len(found[-1][1])
        return found, Txid(before - 1)

    def _attempts(
        self, database: StateBackend, found: Sequence[tuple[Txid, object]]
    ) -> Mapping[Txid, AttemptId]:
        """Return the attempts that have committed these txids, of those that the ledger still has."""
        if not found:
            return {}
        before = found[-1][0] + 1
        if before - found[0][0] <= _GAPS * len(found):
            rows = database.batches(self._topology, limit=before - found[0][0], before=before)
        else:
            looked_up = (database.batch(self._topology, txid) for txid, _ in found)
            rows = [row for row in looked_up if row is not None]
        return {row.txid: row.attempt for row in rows}

    def _records(
        self, outbox: Outbox, txid: Txid, rows: Sequence[StoredRow], attempt: AttemptId | None
    ) -> list[Record]:
        headers = [("txstream-topology", self._topology.encode()), ("txstream-txid", str(txid).encode())]
        if attempt is not None:
            headers.append(("txstream-attempt", str(attempt).encode()))
        return [(*outbox.record(row), headers) for row in rows]

    def _note(self, sent: Mapping[str, Txid]) -> None:
        self._note_sent(sent)
        self._noted = dict(sent)
        self._note_at = self._clock() + _NOTE_SECONDS
        for one in self._outboxes:
            # The rows of the last txid stay: `fsck` counts the rows of the last batch.
            self._database(one.table).drop_used(self._topology, one.table, sent[one.table])

    def _database(self, table: str) -> StateBackend:
        if table not in self._places:
            for database in self._databases:
                with database.read_state(self._topology) as reading:
                    self._places |= {found.name: database for found in reading.tables()}
        if table not in self._places:
            raise StateTableError(f"table {table!r} is in no database of topology {self._topology!r}")
        return self._places[table]

    def _sender(self, outbox: Outbox) -> Any:
        if outbox.topic not in self._senders:
            self._senders[outbox.topic] = outbox.connect()
        return self._senders[outbox.topic]

    def disconnect(self) -> None:
        senders, self._senders = self._senders, {}
        for sender in senders.values():
            with contextlib.suppress(Exception):  # its broker is away; the next connection is another one
                sender.close()
