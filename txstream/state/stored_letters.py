"""Dead letters as a store keeps them: rows, their status, and what one transaction does with them.

Invariants. A row is written by the transaction that commits its batch, and is gone again when an attempt of
that batch is undone. `dead` becomes `retried in txid N` in the transaction that commits batch N, and `dead`
again when that is undone. A record has one row in one life of a topology, however often its retry fails.

The rows of a topology are in the first of its databases, in the fixed order in which a batch is committed.
Code that changes may put another one first, so whoever reads, undoes or marks looks in all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from txstream.core.dead_letters import DeadLetter, LetterKey
from txstream.core.errors import CorruptStateError, StateTableError, TopologyError
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.core.wording import storable

DEAD: Final = "dead"
PLACE_LENGTH: Final = 400
"""A place is part of the primary key. MySQL allows 3,072 bytes in one, and four for a character."""


def retried_in(txid: Txid) -> str:
    """Return the status of a row that batch `txid` has processed."""
    return f"retried in txid {txid}"


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """One row. `txid` is the batch that left the record out. `place` is its source as text, cut by `place_of`
    so that it fits into a key. `when` is when the batch was committed. What was not asked for of `letter`
    (key, value, headers, traceback) is None or empty."""

    topology: str
    uuid: str
    txid: Txid
    place: str
    attempt: AttemptId
    status: str
    when: datetime
    letter: DeadLetter


class DeadLetterTransaction:
    """What one transaction of a store does with the dead letters of one life of a topology. The defaults are
    for a store that keeps none; such a store also leaves `StateBackend.keeps_dead_letters` False."""

    def write_dead_letters(
        self, attempt: TransactionAttempt, letters: Sequence[DeadLetter], when: datetime
    ) -> None:
        """Write a row for each record that this attempt leaves out. A record that has a row of this txid
        already is an error."""
        raise StateTableError(f"{type(self).__name__} keeps no dead letters")

    def undo_dead_letters(self, txid: Txid) -> None:
        """Undo what an earlier attempt of `txid` did: remove the rows that it wrote, and make those that it
        retried dead again."""
        return

    def mark_retried(self, keys: Sequence[LetterKey], txid: Txid) -> None:
        """Give those of these rows that are here the status `retried in txid N`.

        A row that an operator has dropped meanwhile is left out. Raises CorruptStateError for a row that is
        not `dead`: its record would count twice.
        """
        return


def place_of(source: str) -> str:
    """Return the place of a record so that it fits into a key: a long one is cut and keeps a digest of it
    all."""
    text = storable(source)
    if len(text) <= PLACE_LENGTH:
        return text
    digest = hashlib.sha256(source.encode("utf-8", "backslashreplace")).hexdigest()
    return f"{text[: PLACE_LENGTH - len(digest) - 1]}#{digest}"


def cleaned(letter: DeadLetter) -> DeadLetter:
    """Return a letter whose texts every store takes."""
    return replace(
        letter,
        source=storable(letter.source),
        topic=None if letter.topic is None else storable(letter.topic),
        component=storable(letter.component),
        exception=storable(letter.exception),
        message=storable(letter.message),
        traceback=storable(letter.traceback),
    )


def not_dead(topology: str, key: LetterKey, status: str, txid: Txid) -> CorruptStateError:
    """Return the error for a row that is to be retried although it is not dead."""
    return CorruptStateError(
        f"topology {topology!r}, txid {txid}: it retries the record {key.place} of txid {key.txid}, whose "
        f"dead letter is `{status}` and not `{DEAD}`; its effects would count twice, so nothing was written"
    )


def refuse_store(topology: str, display_url: str, kind: str) -> TopologyError:
    """Return the error for a topology whose first store cannot keep dead letters."""
    return TopologyError(
        f"topology {topology!r} asks for dead letters, which are kept in its first database, and "
        f"{display_url} ({kind}) cannot keep any; put a state in a SQL database first, or leave "
        f"dead_letters out"
    )
