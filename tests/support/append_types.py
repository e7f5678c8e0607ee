"""Appended rows of every type in a real database: fsck finds nothing, and then a change of each column."""

from __future__ import annotations

import contextlib
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from txstream import MemorySpout, OpaqueSpout, SqlAppendBolt, SqlTable, TransactionalTopologyBuilder
from txstream.core.batch_metas import MetaCodec
from txstream.inspect.records import FsckReport
from txstream.plugins.audit.fsck_run import fsck_in
from txstream.plugins.proof.zookeeper_tree import MemoryProgress
from txstream.settings import Settings
from txstream.state import open_database
from txstream.testing import TopologyTest

VALUES = (
    "a_text string, some_bytes binary, is_it boolean, tiny tinyint, small smallint, an_int int, big bigint, "
    "a_float float, a_double double, a_day date, a_time timestamp, a_local timestamp_ntz, money decimal(12,3)"
)
_TIME = datetime(2026, 3, 29, 1, 30, 0, 123456)
ROWS: list[tuple[Any, ...]] = [
    (
        *(1, "Grüße \U0001f600", b"\x00\xff", True, -128, 32767, -(2**31), 2**63 - 1, 0.1, 1 / 3),
        *(date(2024, 2, 29), _TIME.replace(tzinfo=UTC), _TIME, Decimal("-1234567.125")),
    ),
    (2, *[None] * 13),
    (
        *(3, "", b"", False, 127, 0, 0, -(2**63), 3.4e38, -1.7e308),
        *(date(1, 1, 2), datetime(1950, 1, 1, tzinfo=UTC), datetime(2100, 12, 31, 23, 59, 59, 999999)),
        Decimal("0.001"),
    ),
    (4, " x ", b" ", True, 0, -1, 1, 0, -0.0, 1e-300, date(1969, 12, 31),
     _TIME.replace(tzinfo=UTC, year=1971), _TIME, Decimal("100.000")),
]  # fmt: skip
NAMES = [field.split()[0] for field in VALUES.split(", ")]


def check_every_type(url: str, table: str = "every_type") -> None:
    with MemorySpout(f"id bigint, {VALUES}", {"p": ROWS}) as source:
        builder = TransactionalTopologyBuilder("every-type", "rows", OpaqueSpout(source, max_batch_records=2))
        store = builder.set_committer_bolt("store", SqlAppendBolt(SqlTable(table, VALUES, key="id bigint")))
        store.shuffle_grouping("rows")
        made = builder.build()
        with TopologyTest(made, database=url) as test:
            test.run()
            test.crash()

            def store_of(codec: Any = None) -> MemoryProgress:
                kept = codec or MetaCodec(made.spout.source.meta_type)
                return MemoryProgress(test._control._world.tree, made.id, kept)

            def report() -> FsckReport:
                with contextlib.closing(open_database(url)) as database:
                    return fsck_in(made.id, store_of, [database], Settings(), topology=made)

            assert report().findings == ()
            engine = sa.create_engine(url)
            kept = sa.Table(table, sa.MetaData(), autoload_with=engine)
            for name in NAMES:
                with engine.begin() as connection:
                    connection.execute(kept.update().where(kept.c.id == 1).values({name: None}))
                (found,) = report().findings
                assert (found.code, name in found.what) == ("rows-differ", True), found
            engine.dispose()
