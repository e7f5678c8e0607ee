"""Dead letters that an operator wants to be retried: which ones a batch takes, and their records.

Invariants. A dead letter is in one open batch at most. A batch takes only those that an earlier txid left out
and that are `dead`, or will be once the batch has undone its own earlier attempt. One that has failed again
is not taken again for the same request. Only the lane of planning takes requests off the queue; it does so
when nothing is left that they ask for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, Final

from txstream.core.batch_metas import BatchMetas
from txstream.core.dead_letters import LetterKey
from txstream.core.errors import CorruptStateError
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid
from txstream.state import StateBackend, TopologyStates
from txstream.state.stored_letters import DEAD, StoredDeadLetter, retried_in

MOST_LETTERS: Final = 100
"""Of one batch. They travel with its work order."""

MOST_BYTES: Final = 1024 * 1024
"""Of one batch, as stored; at least one letter is taken."""


class Retries:
    """What is left to retry, in all databases of one life of a topology."""

    def __init__(
        self,
        states: Sequence[TopologyStates],
        asked: deque[frozenset[str] | None],
    ) -> None:
        self._states = states
        self._asked = asked
        self._failed: set[LetterKey] = set()

    @property
    def first_store(self) -> StateBackend:
        return self._states[0].store

    @property
    def are_asked(self) -> bool:
        return bool(self._asked)

    def failed(self, letters: Collection[LetterKey]) -> None:
        """These have failed again."""
        self._failed.update(letters)

    def next(self, is_open: Collection[LetterKey], before: Txid) -> tuple[LetterKey, ...]:
        """Return what the batch `before` retries; nothing if all of it is in open batches, or done. The batch
        itself undoes what its earlier attempts left in a database: what they retried is dead, and what they
        found is none of it."""
        while self._asked:
            found = self._wanted(self._asked[0], before)
            if found:
                return self._chosen([one for one in found if one not in is_open])
            self._asked.popleft()
            self._failed.clear()
        return ()

    def loaded(self, metas: BatchMetas[Any], txid: Txid | None = None) -> BatchMetas[Any]:
        """Return a batch with the letters that it retries. One that was dropped meanwhile is left out, unless
        a database may have it as part of `txid`: that raises CorruptStateError."""
        if not metas.retried:
            return metas
        read = {key: self._read(key) for key in metas.retried}
        gone = min((key for key, one in read.items() if one is None), default=None)
        if gone is not None and txid is not None:
            self._refuse_without(gone, txid)
        found = tuple(one.letter for one in read.values() if one is not None)
        return metas.retrying(metas.retried, found)

    def _refuse_without(self, gone: LetterKey, txid: Txid) -> None:
        """An opaque batch is undone and planned anew; the plan of a transactional one is what it was."""
        for states in self._states:
            if states.life.semantics is Semantics.TRANSACTIONAL and states.batch(txid) is not None:
                raise CorruptStateError(
                    f"topology {states.life.topology!r}, txid {txid}: it retries the record {gone.place} of "
                    f"txid {gone.txid}, whose row of txstream_dead_letter is gone, and {states.display_url} "
                    f"may have it already, so another database would never get it; put the row back from a "
                    f"backup, then run again"
                )

    def _wanted(self, components: frozenset[str] | None, before: Txid) -> list[LetterKey]:
        dead = DEAD, retried_in(before)
        return sorted(
            key
            for states in self._states
            for one in states.store.dead_letters(states.life.topology, whole=False)
            if one.uuid == states.life.uuid and one.status in dead and one.txid < before
            if components is None or one.letter.component in components
            if (key := LetterKey(one.txid, one.place)) not in self._failed
        )

    def _chosen(self, letters: Sequence[LetterKey]) -> tuple[LetterKey, ...]:
        chosen: list[LetterKey] = []
        size = 0
        for key in letters[:MOST_LETTERS]:
            found = self._read(key)
            if found is None:
                continue
            letter = found.letter
            size += sum(len(part or b"") for part in (letter.key, letter.value, letter.headers))
            if chosen and size > MOST_BYTES:
                break
            chosen.append(key)
        return tuple(chosen)

    def _read(self, key: LetterKey) -> StoredDeadLetter | None:
        for states in self._states:
            for one in states.store.dead_letters(states.life.topology, key=key):
                if one.uuid == states.life.uuid:
                    return one
        return None
