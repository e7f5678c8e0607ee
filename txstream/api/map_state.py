"""`MapState`: a state table that a user's committer reads and writes.

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
"""Takes the present value of a key, or None if it has none, and returns the new one."""


class MapState(ABC, Generic[K, V]):
    """One state table, within one task of one attempt, on an executor in the commit phase.

    A key is a scalar if the table has one key column, and a tuple in the order of the columns if it has
    several; so is a value. Both have the columns' types and are never None.

    *Reads* see the state before this batch, and on top of it what this task itself has written in this
    attempt, also in a replay and when a task runs twice. So the table is opaque, even below a transactional
    spout. Declaring it `semantics="transactional"` saves the column for the previous value, but a row that an
    earlier attempt of this batch wrote is then read as that attempt left it. Its write is skipped, so the
    table stays exact; what the bolt emits, or writes elsewhere, because of such a value is not exact.

    *Writes* are kept in the task until its `finish_batch` has returned. Then the engine writes each key once,
    with its last value, in one transaction for each database. The transaction is refused if the attempt is no
    longer the current one. A failure there fails the attempt, and nothing of the batch counts until all its
    tasks have written.

    The task must own the keys that it writes: those that its grouping sends to it. Nothing is ever removed;
    write a value that stands for nothing. The same tuples must give the same writes in every attempt: use
    nothing random and no clock.

    It can be used from `prepare` to the end of `finish_batch`, on the thread that calls the bolt. Methods
    raise StateValueError, which names state, table and key, for what the table cannot hold and for keys of
    another task; UsageError outside of the attempt; and ServiceUnavailableError if the database does not
    answer, which has the batch replayed.
    """

    @abstractmethod
    def multi_get(self, keys: Sequence[K]) -> list[V | None]:
        """Return the values of `keys`, None for a key without a row. Takes one query for the keys not yet
        read or written in this attempt. A key may come twice."""

    @abstractmethod
    def multi_put(self, keys: Sequence[K], values: Sequence[V]) -> None:
        """Give each key its value. Reads nothing. If a key comes twice, the last value stays."""

    @abstractmethod
    def multi_update(self, keys: Sequence[K], updaters: Updater[V] | Sequence[Updater[V]]) -> list[V]:
        """Give each key the value that its updater makes of the present one, and return the new values.

        One updater may serve all keys. Updaters are called in order, after everything has been read; a key
        that comes twice is updated twice. If one raises, the keys before it have their new values: let the
        attempt fail. One `multi_update` in `finish_batch`, with all that `execute` has gathered, costs one
        query; an `update` in each `execute` costs one for each new key.
        """

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None if it has no row."""
        return self.multi_get((key,))[0]

    def put(self, key: K, value: V) -> None:
        """Give a key a value. Reads nothing."""
        self.multi_put((key,), (value,))

    def update(self, key: K, updater: Updater[V]) -> V:
        """Give a key the value that `updater` makes of the present one, and return the new value."""
        return self.multi_update((key,), updater)[0]
