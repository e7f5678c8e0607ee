"""What a query sees while batches are committed, fail and are replayed.

Every batch adds numbers to some keys and takes the same from others, so between any two batches the table's
sum is zero, whatever they held. A reader that sees another sum has seen part of a batch.

Here the database is SQLite. The tests of each server run the same class.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.states import CrashError, Rig, word_table

from txstream.core.errors import StaleAttemptError
from txstream.core.semantics import Semantics
from txstream.state import StateBackend


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


PLAIN = "SELECT word, n FROM word_count"

GUIDE = Path(__file__).parents[2] / "docs" / "commits.md"


def documented_query() -> str:
    """The guide's query for the values as of the last committed batch, for the topology of these tests."""
    guide = GUIDE.read_text(encoding="utf-8")
    (query,) = re.findall(r"^```sql\n(WITH .*?);\n```$", guide, re.DOTALL | re.MULTILINE)
    assert query.count("'clicks'") == 1
    return str(query).replace("'clicks'", "'words'")


PATIENCE_SECONDS = 30.0


class Reader:
    """A thread that runs one query again and again, each time in a transaction of its own."""

    def __init__(self, url: str, query: str) -> None:
        self._engine = sa.create_engine(url)
        self._query = f"SELECT coalesce(sum(n), 0), count(*) FROM ({query}) AS seen"
        self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._error: BaseException | None = None
        self.reads = 0
        self.sums: set[int] = set()
        self.counts: set[int] = set()

    def see(self) -> None:
        """Wait until a query has begun and ended after this call."""
        with self._changed:
            enough = self.reads + 2  # the query under way began before this call
            assert self._changed.wait_for(lambda: self.reads >= enough or self._error, PATIENCE_SECONDS)
        if self._error is not None:
            raise AssertionError(f"the reader failed: {self._error}") from self._error

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._thread.join(PATIENCE_SECONDS)
        self._engine.dispose()

    def _read(self) -> None:
        try:
            while not self._stopped:
                with self._engine.connect() as connection:
                    total, count = connection.exec_driver_sql(self._query).one()
                with self._changed:
                    self.sums.add(int(total))
                    self.counts.add(count)
                    self.reads += 1
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            with self._changed:
                self._error = error
                self._changed.notify_all()


def batch(number: int) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """The two halves of a batch: what is added and what is taken away. Some keys vary from batch to batch."""
    return {f"a{number % 3}": number, "a": 10}, {f"z{number % 4}": -number, "z": -10}


def both(number: int) -> dict[str, int]:
    added, taken = batch(number)
    return {**added, **taken}


@contextmanager
def reading(url: str, *queries: str) -> Iterator[list[Reader]]:
    readers = [Reader(url, query) for query in queries]
    for reader in readers:
        reader.__enter__()
    try:
        yield readers
    finally:
        for reader in readers:
            reader.__exit__()


class TestReaders:
    @pytest.mark.parametrize("semantics", [Semantics.OPAQUE, Semantics.TRANSACTIONAL])
    def test_on_the_driver_path_any_query_sees_whole_batches_only(
        self, database: StateBackend, url: str, semantics: Semantics
    ) -> None:
        rig = Rig(database, url, word_table(semantics=semantics)).join()
        with reading(url, PLAIN) as (reader,):

            def crash_when_seen(_point: str) -> None:
                reader.see()
                raise CrashError

            for txid in range(1, 9):
                # A transactional replay holds the same tuples; an opaque one may hold any.
                other = txid if semantics is Semantics.TRANSACTIONAL else txid + 20
                before = rig.values()
                with pytest.raises(CrashError):
                    rig.commit(txid, both(other), reached=crash_when_seen)
                assert rig.values() == before, "none of it is left"
                zombie = rig.next(txid)
                rig.commit(txid, both(other), reached=lambda _: reader.see())
                with pytest.raises(StaleAttemptError):
                    rig.commit(txid, both(txid + 40), under=zombie)
                reader.see()
                rig.commit(txid, both(txid), reached=lambda _: reader.see())
                reader.see()
        assert reader.sums == {0}
        assert {0, 4} <= reader.counts  # it has seen the table empty and filled
        assert rig.values()["a"] == 80

    def test_on_the_executor_path_a_plain_query_sees_parts_and_the_documented_one_does_not(
        self, rig: Rig
    ) -> None:
        with reading(rig.url, PLAIN, documented_query()) as (plain, as_of):

            def see() -> None:
                plain.see()
                as_of.see()

            for txid in range(1, 9):
                # The first attempt dies half way. The second may commit and be redone, on either path.
                for attempt_number in range(3):
                    if txid % 3 == 0 and attempt_number == 1:
                        rig.commit(txid, both(txid + 20), reached=lambda _: see())
                        continue
                    number = txid if attempt_number == 2 else txid + 20 + attempt_number
                    under = rig.begin(txid)
                    for half in batch(number):
                        see()
                        rig.write(under, half)
                        see()
                        if attempt_number == 0:
                            break
                    else:
                        rig.end(under)
                        see()
        assert as_of.sums == {0}
        assert plain.sums > {0}
        assert {0, 4} <= as_of.counts
        assert rig.values()["a"] == 80
