"""How fast are rows appended to PostgreSQL? Rows/s of a commit of `SqlTable` rows beside a bare COPY.

    python benchmarks/append.py                      # its own PostgreSQL with fsync
    python benchmarks/append.py --postgres URL --rows 50000 --batches 20 --json

A row has the default key (topic, partition, offset), a text, a decimal, a double and a timestamp. A commit is
timed as the engine calls it, from an Arrow table: checks, sorting, fence, COPY, ledger, COMMIT. The bare COPY
writes the same rows into a table of the same columns and key, from text that was made beforehand, with its
COMMIT. Both write the same batches in turns. Figures are medians over the batches. At the end both tables
must hold the same rows. The exit status is 1 when a commit writes fewer than 150,000 rows/s.

The load of the machine is shown beside: the target is for two cores of which nobody else takes any.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pyarrow as pa
from state import own_server

from txstream.api.reducers import Put
from txstream.api.state import SqlTable
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt, Txid, attempt_id
from txstream.state import Commit, TableSpec, open_database
from txstream.state.sql.postgresql_copy import copy_body, copy_text

TARGET = 150_000
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
TABLE = SqlTable("orders", "customer string, amount decimal(12,2), weight double, at timestamp")
BARE = """CREATE TABLE bare (topic text COLLATE "C", partition integer, "offset" bigint, customer text,
    amount numeric(12, 2), weight double precision, at timestamptz, txid bigint NOT NULL,
    PRIMARY KEY (topic, partition, "offset")) WITH (fillfactor = 100)"""


def batch_of(number: int, rows: int) -> pa.Table:
    """Return the rows of a batch, in the order of four partitions."""
    first = number * rows
    schema = pa.schema([*TABLE.key_schema, *TABLE.value_schema])
    columns = [
        ["orders"] * rows,
        [at * 4 // rows for at in range(rows)],
        range(first, first + rows),
        [f"customer {at % 10_007}" for at in range(first, first + rows)],
        pa.array(range(first, first + rows), pa.int64())
        .cast(pa.decimal128(19, 0))
        .cast(pa.decimal128(12, 2)),
        [at / 7 for at in range(first, first + rows)],
        [NOW] * rows,
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def measure(url: str, semantics: Semantics, rows: int, batches: int) -> dict[str, object]:
    """Write the batches both ways, in turns, and return the medians in rows/s."""
    spec = TableSpec(TABLE, semantics, {name: Put() for name in TABLE.value_names})
    timed: dict[str, list[float]] = {"commit": [], "copy": []}
    with ExitStack() as stack:
        database = open_database(url, connect_timeout_seconds=10.0, message_timeout_seconds=60.0)
        stack.callback(database.close)
        plain = stack.enter_context(psycopg.connect(url.replace("postgresql+psycopg:", "postgresql:")))
        plain.execute("DROP TABLE IF EXISTS bare")
        plain.execute(BARE)
        plain.commit()
        database.ensure_framework_tables()
        topology = f"append-{uuid.uuid4().hex[:8]}"
        states = database.of(topology, uuid.uuid4().hex, semantics, [spec])
        states.join(first_run=True)
        for number in range(batches):
            table, txid = batch_of(number, rows), Txid(number + 1)
            body = bytes(copy_body([copy_text(column) for column in table.columns], txid))
            attempt = TransactionAttempt(txid, attempt_id(1, number + 1))
            commit = Commit(attempt, {"partitions": {}}, {"orders": table}, rows, NOW, NOW)
            started = time.perf_counter()
            states.commit(commit)
            timed["commit"].append(rows / (time.perf_counter() - started))
            started = time.perf_counter()
            with plain.cursor().copy("COPY bare FROM STDIN") as copy:
                copy.write(body)
            plain.commit()
            timed["copy"].append(rows / (time.perf_counter() - started))
        both = "SELECT count(*) FROM (TABLE orders EXCEPT TABLE bare) AS x"
        (different,) = plain.execute(both).fetchone() or (None,)
        (count,) = plain.execute("SELECT count(*) FROM orders").fetchone() or (None,)
        plain.commit()  # else it would keep its locks
        database.delete(topology, drop_state=True)
    if different != 0 or count != rows * batches:
        raise SystemExit(f"the tables differ in {different} rows; {count} of {rows * batches} are there")
    commit_rate, copy_rate = (statistics.median(timed[name]) for name in ("commit", "copy"))
    return {
        "semantics": str(semantics),
        "commit_rows_per_second": round(commit_rate),
        "copy_rows_per_second": round(copy_rate),
        "share": round(commit_rate / copy_rate, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--postgres", metavar="URL", help="a database that may be written to")
    parser.add_argument("--rows", type=int, default=50_000, help="rows of a batch")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    here = parser.parse_args()
    with ExitStack() as stack:
        url = here.postgres
        if url is None:
            url = own_server(stack, Path(stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd()))))
        before = os.getloadavg()[0]
        figures = [
            measure(url, semantics, here.rows, here.batches)
            for semantics in (Semantics.OPAQUE, Semantics.TRANSACTIONAL)
        ]
    document = {
        "rows": here.rows,
        "batches": here.batches,
        "load_before": round(before, 1),
        "figures": figures,
    }
    if here.json:
        print(json.dumps(document))
    else:
        for one in figures:
            print(
                f"{one['semantics']}: {one['commit_rows_per_second']:,} rows/s committed, a bare COPY "
                f"{one['copy_rows_per_second']:,} ({one['share']:.0%}); load before {before:.1f}"
            )
    return int(any(int(str(one["commit_rows_per_second"])) < TARGET for one in figures))


if __name__ == "__main__":
    sys.exit(main())
