"""What driver and executors send each other arrives as it was sent."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
from hypothesis import given, strategies as st
from support.inmemory import attempt
from support.lists import each

from txstream.engine.batch.messages import WorkOrder, pack, unpack

TABLES = st.dictionaries(
    st.text(max_size=5),
    st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.text(max_size=5)), max_size=4),
    max_size=4,
)


def table(rows: list[tuple[int, str]]) -> pa.Table:
    return pa.table(
        {
            "n": pa.array([n for n, _ in rows], pa.int64()),
            "word": pa.array([word for _, word in rows], pa.string()),
        }
    )


@given(TABLES, st.dictionaries(st.text(max_size=3), st.integers() | st.text() | st.none()))
def test_a_message_comes_back_in_its_order(rows: dict[str, Any], header: dict[str, Any]) -> None:
    header.pop("tables", None)
    tables = {name: table(some) for name, some in rows.items()}
    found_header, found = unpack(pack(header, tables))
    assert found_header == header
    assert list(found) == list(tables)
    assert found == tables


def test_a_message_without_tables() -> None:
    assert unpack(pack({"failure": {"error": "x"}})) == ({"failure": {"error": "x"}}, {})


def test_columns_are_read_in_place_and_aligned() -> None:
    for size in range(9):
        message = pack({"pad": "x" * size}, {"a": table([(1, "x")]), "b": table([(2, "yz")])})
        start = pa.py_buffer(message).address
        for part in unpack(message)[1].values():
            for buffer in (b for column in part.columns for b in column.chunk(0).buffers() if b is not None):
                assert start <= buffer.address < start + len(message), "the table was copied"
                assert (buffer.address - start) % 8 == 0


def test_a_work_order_survives_json() -> None:
    assignments = [{"t/0": {"start": 1, "end": 5}}, {}]
    order = WorkOrder(attempt(7, 3, epoch=2), 2, assignments, ahead={"t/0": bytes(range(256))})
    assert WorkOrder.from_json(order.to_json()) == order


@each("module", ["txstream.engine.batch.worker", "txstream.bolts.sql", "txstream.bolts.aggregate"])
def test_executors_load_neither_sql_nor_zookeeper(module: str) -> None:
    program = f"import {module}, sys; print(sorted({{n.split('.')[0] for n in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(eval(done.stdout))
    assert "pyarrow" in loaded
    assert not loaded & {"sqlalchemy", "alembic", "kazoo", "typer", "rich", "kafka"}
