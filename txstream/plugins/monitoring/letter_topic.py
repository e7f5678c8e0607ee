"""Sends dead letters to a topic as well: from their table, in order, while a topology runs.

Invariants. Only letters of batches that every database has committed are sent, the oldest batch first, so
none is of an attempt that may still be undone. `OutboxFollower` sends them, as it sends results: at least
once, and none is passed over, except a record that was itself read as a dead letter: it would come round for
ever. A lost broker delays the letters; it never delays a batch and never ends a run.
"""

from __future__ import annotations

import base64
import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from txstream.core.batch_metas import to_json
from txstream.core.dead_letters import DeadLetter, LetterKey, LetterSender, SentLetter
from txstream.core.transaction import Txid
from txstream.engine.start.companions import Leading
from txstream.plugins.outbox.sending import Outbox, OutboxFollower
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


def letter_topic(leading: Leading) -> OutboxFollower | None:
    """Return what sends the dead letters to the topic that the topology names, if any."""
    topology, store = leading.topology, leading.store
    topic = None if topology.dead_letters is None else topology.dead_letters.topic
    identity = None if topic is None else store.read_identity()
    if topic is None or identity is None:
        return None
    context = leading.context
    connect = partial(topology.spout.source.letter_topic, topic, context, context.connect_timeout_seconds)

    def read_sent() -> Mapping[str, Txid]:
        noted = store.notes.get(LETTERS_SENT)
        return {} if noted is None else {noted[0]: noted[1]}

    def note_sent(sent: Mapping[str, Txid]) -> None:
        store.notes.put(LETTERS_SENT, (topic, sent[topic]))

    letters = Letters(topology.id, identity.uuid, topic, leading.databases, connect)
    return follower(letters, leading.current, read_sent, note_sent)


def follower(
    letters: Letters,
    current: Callable[[], Txid],
    read_sent: Callable[[], Mapping[str, Txid]],
    note_sent: Callable[[Mapping[str, Txid]], None],
) -> OutboxFollower:
    """Return what sends these letters, as `OutboxFollower` says."""
    return OutboxFollower(
        letters.topology, [letters], current, read_sent, note_sent,
        what="dead letters", look_seconds=LOOK_SECONDS,
    )  # fmt: skip


class Letters(Outbox):
    """The letters of one life of a topology. They stay in their table, which is their outbox."""

    def __init__(
        self,
        topology: str,
        uuid: str,
        topic: str,
        databases: Sequence[StateBackend],
        connect: Callable[[], LetterSender],
    ) -> None:
        super().__init__(topic, "their topic")
        self.topology = topology
        self._uuid = uuid
        self._databases = databases
        self._connect = connect
        self._told = False

    def connect(self) -> LetterSender:
        return self._connect()

    def waiting(self, after: Txid, before: Txid) -> tuple[list[tuple[Txid, list[_Head]]], Txid]:
        """Heads of letters, in the order of their source: each is read as a whole when it is sent."""
        found: list[_Head] = []
        for database in self._databases:
            # Counted first, which is cheap: most batches have none.
            if any(after < txid < before for txid, _ in database.dead_letter_counts(self.topology)):
                found += [
                    _Head(one.txid, _place(one.letter), database, LetterKey(one.txid, one.place))
                    for one in database.dead_letters(self.topology, whole=False)
                    if after < one.txid < before and one.uuid == self._uuid
                ]
        found.sort(key=lambda one: (one.txid, one.place))
        by_txid = itertools.groupby(found, key=lambda one: one.txid)
        return [(txid, list(heads)) for txid, heads in by_txid], Txid(before - 1)

    def send(self, sender: LetterSender, _txid: Txid, what: Sequence[_Head]) -> None:
        for head in what:
            for one in head.database.dead_letters(self.topology, key=head.key):
                if one.uuid != self._uuid:
                    continue
                if not was_sent(one.letter):
                    sender.send(record_of(one.letter))
                    continue
                level = logging.INFO if self._told else logging.WARNING
                self._told = True
                log.log(
                    level, "%s was a dead letter when it was read, so it is not sent again", one.letter.source
                )


class _Head(NamedTuple):
    """Where a letter is."""

    txid: Txid
    place: tuple[Any, ...]
    database: StateBackend
    key: LetterKey


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
