"""Suite for what people read on a server: one moment, and keys of all types.

Subclasses have a fixture `url` with an empty database.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
import sqlalchemy as sa

import txstream
from support.states import Rig, word_table
from txstream import inspect
from txstream.core.transaction import Txid
from txstream.plugins.audit.scratch_tables import refuse_scratch, write_scratch
from txstream.state import StateDatabase


class ServerReadings:
    def test_a_reading_sees_one_moment(self, url: str) -> None:
        """READ COMMITTED, the level of a commit, would show what is committed between two questions."""
        database = StateDatabase(url)
        rig = Rig(database, url, word_table()).join()
        rig.commit(1, {"a": 4})
        with database.read_state("words") as reading:
            before = (reading.as_of, reading.count("word_count"))
            rig.commit(2, {"a": 3, "b": 1})
            row = reading.find("word_count", ["a"])
            assert row is not None
            assert (row.value, row.txid) == ({"n": 4}, 1)
            assert (reading.as_of, reading.count("word_count")) == before == (Txid(1), 1)
        with database.read_state("words") as reading:
            assert reading.as_of == 2
        # The connection has its old level back: a commit needs to see what it has waited for.
        with database.sessions.reading("a test") as connection:
            level = connection.get_isolation_level()
        assert level == "READ COMMITTED"
        database.close()

    def test_deltas_in_a_table_of_their_own(self, url: str) -> None:
        database = StateDatabase(url)
        spec = word_table(key="s string, t timestamp, x binary, c decimal(9,2)", value="n bigint, f double")
        moment = datetime(2026, 1, 31, 11, 0, 0, 250_000, tzinfo=UTC)
        rig = Rig(database, url, spec).join()
        deltas = rig.table_of({("\U0001f600 ", moment, b"\x00\xff", Decimal("1.50")): (3, 0.5)})
        refuse_scratch(database, "seen", spec.state)
        assert write_scratch(database, "seen", spec.state, [(1, deltas), (2, deltas)]) == 2
        with pytest.raises(txstream.UsageError, match="table 'seen' exists"):
            refuse_scratch(database, "seen", spec.state)
        with database.sessions.reading("a test") as connection:
            rows = connection.execute(sa.text("SELECT txid, s, n, f FROM seen ORDER BY txid")).all()
        assert [tuple(row) for row in rows] == [(txid, "\U0001f600 ", 3, 0.5) for txid in (1, 2)]
        database.close()

    def test_keys_of_all_types(self, url: str) -> None:
        key = "s string, i int, b boolean, d date, t timestamp, x binary, c decimal(9,2)"
        database = StateDatabase(url)
        rig = Rig(database, url, word_table(key=key)).join()
        moment = datetime(2026, 1, 31, 11, 0, 0, 250_000, tzinfo=UTC)
        whole = ("\U0001f600 ", -5, True, date(2026, 1, 31), moment, b"\x00\xff", Decimal("1.50"))
        rig.commit(1, {whole: 3})
        texts = ["\U0001f600 ", "-5", "true", "2026-01-31", "2026-01-31T12:00:00.25+01:00", "00ff", "1.5"]
        settings = txstream.Settings(database=url)
        (row,) = inspect.get("words", "word_count", texts, settings, parse=True).rows
        assert tuple(row.key.values()) == whole
        assert row.key["b"] is True
        database.close()
