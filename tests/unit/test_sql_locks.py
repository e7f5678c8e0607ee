"""What the fence's locks do in a SQL database, as far as two sessions can tell.

The database here is SQLite, which has one lock per file; the tests of each server run the same class.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from support.held_locks import PATIENCE_SECONDS, Held, another, tasks
from support.states import Rig, attempt, word_table

from txstream.core.errors import StaleAttemptError
from txstream.core.semantics import Semantics
from txstream.state import FenceLockedError, StateBackend

OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


class TestLocks:
    begin: ClassVar[tuple[str, ...]] = ("BEGIN IMMEDIATE",)
    """The statements that SQLAlchemy sends to begin a transaction."""
    share: ClassVar[str | tuple[str, ...]] = (
        "WHERE txstream_fence.topology = ? AND txstream_fence.uuid = ? AND txstream_fence.attempt = ?"
    )
    """The end of the statement with which a task takes the fence."""

    @pytest.fixture
    def held(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
        held = Held(monkeypatch)
        yield held
        held.go_on.set()

    @pytest.mark.parametrize("semantics", [OPAQUE, TRANSACTIONAL])
    def test_the_fence_is_the_first_statement_of_every_transaction(
        self, database: StateBackend, url: str, semantics: Semantics
    ) -> None:
        """A plain read before it would see the ledger as it was before the lock on the fence was granted."""
        rig = Rig(database, url, word_table(semantics=semantics)).join()
        engine = rig.database.sessions.engine
        transactions: list[list[str]] = [[]]

        def sends(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            transactions[-1].append(" ".join(statement.split()))

        sa.event.listen(engine, "before_cursor_execute", sends)
        sa.event.listen(engine, "commit", lambda _: transactions.append([]))
        rig.commit(1, {"a": 1})
        rig.commit(1, {"a": 1})
        under = rig.begin(2)
        rig.write(under, {"a": 1})
        rig.end(under)
        rig.states.raise_fence(attempt(1, 0, epoch=2).attempt)
        assert transactions.pop() == []
        first = [statements[len(self.begin)] for statements in transactions]
        assert [tuple(statements[: len(self.begin)]) for statements in transactions] == [self.begin] * 6
        raises = "UPDATE txstream_fence SET attempt="
        assert [statement.startswith(raises) for statement in first[:3]] == [True] * 3
        assert first[5].startswith(raises)
        for statement in first[3:5]:
            assert "txstream_fence" in statement
            assert statement.endswith(self.share), statement

    def test_nobody_raises_the_fence_while_a_task_writes(self, rig: Rig, held: Held) -> None:
        """Otherwise the new attempt would undo the batch first, and the task would write after that."""
        rig.commit(1, {"a": 1})
        under = rig.begin(2)
        with tasks(1) as pool, another(rig) as driver:
            share = pool.submit(rig.write, under, {"a": 5, "b": 5})
            held.wait_for(1)
            leader = attempt(2, 0, epoch=2).attempt
            with pytest.raises(FenceLockedError):
                driver.states.raise_fence(leader, lock_timeout_seconds=0.1)
            held.go_on.set()
            assert share.result(PATIENCE_SECONDS) == 2
            driver.commit(2, None)
            with pytest.raises(StaleAttemptError):
                rig.write(under, {"a": 5})
        assert rig.values() == {"a": 1}
