"""Sends dead letters to a topic as well: from their table, in order, while a topology runs.

Invariants. Only letters of batches that every database has committed are sent, the oldest batch first, so
none is of an attempt that may still be undone. How far it has come is noted once the broker has acknowledged
all letters of a batch. A driver that dies in between sends that batch again: at least once, and none is
passed over, except a record that was itself read as a dead letter: it would come round for ever. A lost
broker delays the letters; it never delays a batch and never ends a run.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from txstream.core.batch_metas import to_json
from txstream.core.dead_letters import DeadLetter, LetterKey, LetterSender, SentLetter
from txstream.core.transaction import FIRST_TXID, Txid
from txstream.engine.start.companions import Leading
from txstream.plugins.outbox.follower import Follower
from txstream.state import StateBackend
from txstream.zookeeper.notes import Note
from txstream.zookeeper.znode_values import parse_object, take

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
_HEADER = "__streams.errors."


def _decode_sent(data: bytes, path: str) -> tuple[None, tuple[str, Txid]]:
    document = parse_object(data, path, {"topic", "txid"})
    return None, (take(document, "topic", str, path), Txid(take(document, "txid", int, path)))


LETTERS_SENT = Note(
    "letters_sent",
    lambda sent, _: to_json({"topic": sent[0], "txid": sent[1]}).encode(),
    _decode_sent,
)
"""The topic that dead letters are sent to, and the last txid whose letters are all there. Without it, all of
them are sent once more."""


def letter_topic(leading: Leading) -> LetterTopic | None:
    """Return what sends the dead letters to the topic that the topology names, if any."""
    topology, store = leading.topology, leading.store
    topic = None if topology.dead_letters is None else topology.dead_letters.topic
    identity = None if topic is None else store.read_identity()
    if topic is None or identity is None:
        return None
    context = leading.context

    def read_sent() -> Txid | None:
        noted = store.notes.get(LETTERS_SENT)
        return noted[1] if noted is not None and noted[0] == topic else None

    return LetterTopic(
        topology.id,
        identity.uuid,
        leading.databases,
        partial(topology.spout.source.letter_topic, topic, context, context.connect_timeout_seconds),
        leading.current,
        read_sent,
        lambda txid: store.notes.put(LETTERS_SENT, (topic, txid)),
    )


class LetterTopic(Follower):
    """Sends the letters of one life of a topology.

    `current` returns the txid that commits next, `read_sent` the last txid whose letters are all sent, and
    `note_sent` stores it.
    """

    def __init__(
        self,
        topology: str,
        uuid: str,
        databases: Sequence[StateBackend],
        connect: Callable[[], LetterSender],
        current: Callable[[], Txid],
        read_sent: Callable[[], Txid | None],
        note_sent: Callable[[Txid], None],
    ) -> None:
        super().__init__(topology, "dead letters", "their topic", LOOK_SECONDS)
        self._topology = topology
        self._uuid = uuid
        self._databases = databases
        self._connect = connect
        self._current = current
        self._read_sent = read_sent
        self._note_sent = note_sent
        self._sent: Txid | None = None
        self._looked: Txid | None = None
        self._sender: LetterSender | None = None
        self._told = False

    def send_committed(self, *, is_last: bool = False) -> None:
        current = self._current()
        if current == self._looked:
            return
        if self._sent is None:
            self._sent = self._read_sent() or Txid(FIRST_TXID - 1)
        heads = self._heads(self._sent, current)
        for at, (txid, _, database, key) in enumerate(heads):
            for one in database.dead_letters(self._topology, key=key):
                if one.uuid == self._uuid:
                    self._send(one.letter)
            if at + 1 == len(heads) or heads[at + 1][0] != txid:
                self._note_sent(txid)
                self._sent = txid
        self._looked = current

    def _send(self, letter: DeadLetter) -> None:
        if was_sent(letter):
            level = logging.INFO if self._told else logging.WARNING
            self._told = True
            log.log(level, "%s was a dead letter when it was read, so it is not sent again", letter.source)
            return
        if self._sender is None:
            self._sender = self._connect()
        self._sender.send(record_of(letter))

    def _heads(
        self, after: Txid, before: Txid
    ) -> list[tuple[Txid, tuple[Any, ...], StateBackend, LetterKey]]:
        """Return where the letters of the batches between these two are, in the order of their source."""
        found = []
        for database in self._databases:
            # Counted first, which is cheap: most batches have none.
            if any(after < txid < before for txid, _ in database.dead_letter_counts(self._topology)):
                found += [
                    (one.txid, _place(one.letter), database, LetterKey(one.txid, one.place))
                    for one in database.dead_letters(self._topology, whole=False)
                    if after < one.txid < before and one.uuid == self._uuid
                ]
        return sorted(found, key=lambda one: one[:2])

    def disconnect(self) -> None:
        sender, self._sender = self._sender, None
        if sender is None:
            return
        try:
            sender.close()
        except Exception as error:  # noqa: BLE001 - its broker is away; the next connection is another one
            log.info("a connection to the topic of dead letters could not be closed: %s", error)


def record_of(letter: DeadLetter) -> SentLetter:
    """Return what is sent of a letter: its record as it was, with the headers of Kafka Streams (KIP-1034)."""
    own = [(name, None if value is None else base64.b64decode(value)) for name, value in _headers_of(letter)]
    told = {
        "exception": letter.exception,
        "stacktrace": letter.traceback,
        "message": letter.message,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
    }
    errors = [(_HEADER + name, str(value).encode()) for name, value in told.items() if value is not None]
    return SentLetter(letter.partition, letter.key, letter.value, [*own, *errors], letter.timestamp_ms)


def was_sent(letter: DeadLetter) -> bool:
    """Return whether a letter's record has the headers of one that was sent."""
    return any(name.startswith(_HEADER) for name, _ in _headers_of(letter))


def _headers_of(letter: DeadLetter) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = json.loads(letter.headers or b"[]")
    return found


def _place(letter: DeadLetter) -> tuple[Any, ...]:
    return letter.topic or letter.source.rpartition("@")[0], letter.partition or 0, letter.offset or 0
