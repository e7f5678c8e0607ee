"""`MapState`: a state table as a committer of the user's reads and writes it.

A committer declares its states by name and gets them in `prepare`:

    class Ledger(BatchBolt, Committer):
        states = {"accounts": SqlState("accounts", key="account string", value="balance bigint")}

        def prepare(self, context, collector, batch_id):
            super().prepare(context, collector, batch_id)
            self.accounts = context.state("accounts")
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

K = TypeVar("K")
V = TypeVar("V")

Updater: TypeAlias = Callable[[V | None], V]
"""From the present value of a key, None where it has none, to its new one."""


class MapState(ABC, Generic[K, V]):
    """One state table, within one task of one attempt. On an executor, in the commit phase.

    A key, and a value, is a scalar where the table has one such column, and a tuple in the order of the
    columns where it has several; of the columns' types, never None.

    *What is read* is the state before this batch, and on top of it what this task itself has written in this
    attempt: also in a replay, and when a task runs twice. So the table is opaque, also below a transactional
    spout. If it is declared `semantics="transactional"` nevertheless, which spares the column for the value
    before, a row that an earlier attempt of this batch has written is read as that attempt left it; its
    write is skipped, so the table stays exact, but what is emitted, or written elsewhere, because of such a
    value is not.

    *What is written* is kept in the task until its `finish_batch` has returned. Then the engine writes each
    key once, with its last value, in one transaction for each database, which is refused when the attempt is
    no longer the current one. What fails there fails the attempt, and nothing of the batch counts until all
    its tasks have written.

    The task must own the keys that it writes: those that its grouping sends to it. Nothing is ever removed;
    write a value that stands for nothing. The same tuples must give the same writes, in every attempt:
    nothing random, no clock.

    It can be used from `prepare` to the end of `finish_batch`, on the thread that calls the bolt. Methods
    raise StateValueError, which names state, table and key, for what the table cannot hold and for keys of
    another task; UsageError outside of the attempt; ServiceUnavailableError when the database does not
    answer, which has the batch replayed.
    """

    @abstractmethod
    def multi_get(self, keys: Sequence[K]) -> list[V | None]:
        """The values of `keys`, None for a key without a row. One query for those not yet read or written in
        this attempt; a key may come twice."""

    @abstractmethod
    def multi_put(self, keys: Sequence[K], values: Sequence[V]) -> None:
        """Give each key its value. Reads nothing. Of a key that comes twice the last value stays."""

    @abstractmethod
    def multi_update(self, keys: Sequence[K], updaters: Updater[V] | Sequence[Updater[V]]) -> list[V]:
        """Give each key the value that its updater makes of the present one; the new values.

        One updater may serve all keys. They are called in order, each after all reading; a key that comes
        twice is updated twice. When one raises, the keys before it have their new values: let it fail the
        attempt. `multi_update` in `finish_batch`, with all that `execute` has gathered, costs one query; an
        `update` in each `execute` costs one for each new key.
        """

    def get(self, key: K) -> V | None:
        """The value of a key; None when it has no row."""
        return self.multi_get((key,))[0]

    def put(self, key: K, value: V) -> None:
        """Give a key a value. Reads nothing."""
        self.multi_put((key,), (value,))

    def update(self, key: K, updater: Updater[V]) -> V:
        """Give a key the value that `updater` makes of the present one; the new value."""
        return self.multi_update((key,), updater)[0]
