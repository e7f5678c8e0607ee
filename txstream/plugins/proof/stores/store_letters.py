"""Dead letters in a `StoreBackend`: what `state.stored_letters` promises, over get, put and scan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from txstream.core.dead_letters import DeadLetter, LetterKey
from txstream.core.errors import CorruptStateError
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.plugins.proof.stores import layout
from txstream.plugins.proof.stores.layout import Transaction
from txstream.state.records import TopologyLife
from txstream.state.stored_letters import DEAD, StoredDeadLetter, cleaned, not_dead, place_of, retried_in


def write(
    here: Transaction,
    life: TopologyLife,
    attempt: TransactionAttempt,
    letters: Sequence[DeadLetter],
    when: datetime,
) -> None:
    space = layout.dead_space(life.topology)
    for letter in letters:
        place = place_of(letter.source)
        key = (life.uuid, attempt.txid, place)
        if here.get(space, key) is not None:
            raise CorruptStateError(
                f"topology {life.topology!r}: {attempt} has two dead letters of one record, {place}; nothing "
                f"was written"
            )
        row = {"attempt": attempt.attempt, "status": DEAD, "when": when, "letter": asdict(cleaned(letter))}
        here.put(space, key, row)


def undo(here: Transaction, life: TopologyLife, txid: Txid) -> None:
    space = layout.dead_space(life.topology)
    for key, row in list(here.scan(space)):
        if key[0] == life.uuid and key[1] == txid:
            here.put(space, key, None)
        elif key[0] == life.uuid and row["status"] == retried_in(txid):
            here.put(space, key, {**row, "status": DEAD})


def mark_retried(here: Transaction, life: TopologyLife, keys: Sequence[LetterKey], txid: Txid) -> None:
    space = layout.dead_space(life.topology)
    for key in keys:
        place = (life.uuid, key.txid, key.place)
        row = here.get(space, place)
        if row is None:
            continue
        if row["status"] != DEAD:
            raise not_dead(life.topology, key, row["status"], txid)
        here.put(space, place, {**row, "status": retried_in(txid)})


def read(here: Transaction, topology: str, key: LetterKey | None) -> list[StoredDeadLetter]:
    found = [
        _stored(topology, place, row)
        for place, row in here.scan(layout.dead_space(topology))
        if key is None or place[1:] == (key.txid, key.place)
    ]
    return sorted(found, key=lambda one: (one.txid, one.place))


def counts(here: Transaction, topology: str) -> dict[tuple[Txid, str], int]:
    return dict(Counter((Txid(key[1]), row["status"]) for key, row in here.scan(layout.dead_space(topology))))


def drop(here: Transaction, topology: str, wanted: Callable[[str, LetterKey], bool]) -> int:
    """Remove the rows that are wanted by uuid and key. Returns how many."""
    space, gone = layout.dead_space(topology), 0
    for key, _ in list(here.scan(space)):
        if wanted(key[0], LetterKey(Txid(key[1]), key[2])):
            here.put(space, key, None)
            gone += 1
    return gone


def _stored(topology: str, key: tuple[Any, ...], row: dict[str, Any]) -> StoredDeadLetter:
    uuid, txid, place = key
    return StoredDeadLetter(
        topology=topology,
        uuid=uuid,
        txid=txid,
        place=place,
        attempt=row["attempt"],
        status=row["status"],
        when=row["when"],
        letter=DeadLetter(**row["letter"]),
    )
