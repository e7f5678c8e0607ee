"""The world of a topology that goes back: savepoints and rewinds at any moment, and drivers of before.

People make savepoints, drop them, and go back to them, or to a txid by its number; each of them may die or
sleep between any two of their steps while drivers go on. All of it is the product's own code, over real
SQLite files, since no other store in memory can be gone back to.

The oracle reads the files by `sqlite3`, and knows of a rewind only to which txid it went: what counts since
is what counted as of that txid, and nothing of what was undone. From that it computes what each table must
hold after each commit, and where each batch must begin. It sees what ZooKeeper stores, too: no txid comes
back.
"""

from __future__ import annotations

import functools
import json
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from simulation.histories import REAL, MutableWorld, Rules, tell_of
from txstream import (
    Count,
    MemorySpout,
    OpaqueSpout,
    SqlAppendBolt,
    SqlState,
    SqlStateBolt,
    SqlTable,
    Sum,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)
from txstream.core.errors import (
    FencedError,
    ProgressMismatchError,
    ServiceUnavailableError,
    StaleAttemptError,
    UsageError,
)
from txstream.core.fault_points import CrashError
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.plugins.change import rewind_command, rewinding, savepoints
from txstream.plugins.change.savepoints import create_savepoint_in, drop_savepoint_in, remove, saved
from txstream.plugins.proof.simulation.chances import Chances
from txstream.plugins.proof.simulation.driver import Actor, SimulatedDriver
from txstream.plugins.proof.simulation.program import Program
from txstream.plugins.proof.simulation.world import FAULTS, Tree, WrongResultError
from txstream.state.records import COMMITTED
from txstream.zookeeper.paths import ROOT, Paths
from txstream.zookeeper.tree import Operation
from txstream.zookeeper.znode_values import StoredCurrent

# A start has many more points here than in memory, and a history of starts alone would show nothing.
REWIND_FAULTS: Mapping[str, float] = {
    **FAULTS,
    "crash": 0.003,
    "freeze": 0.004,
    "freeze at start": 0.004,
    "database away": 0.004,
    "answer lost": 0.008,
    "savepoint": 0.05,
    "rewind": 0.03,
    "drop": 0.01,
}
STEPS = 70
_random = random.Random(2)
ROWS = {f"p{p}": [(_random.choice("abcd"), 100 * p + at) for at in range(8)] for p in (1, 2, 3)}
TABLES = (("one", "counts"), ("one", "appended"), ("two", "others"))


@functools.cache
def program_of(semantics: Semantics, states: Semantics, databases: int) -> Program:
    spout: Any = OpaqueSpout if semantics is Semantics.OPAQUE else TransactionalSpout
    with MemorySpout("word string, x bigint", ROWS) as source:
        builder = TransactionalTopologyBuilder("t", "rows", spout(source), max_attempts=100)
        for server, table in TABLES:
            url = f"memory://{server}"
            if table == "appended":
                rows = SqlTable(table, "word string", key="x bigint", url=url)
                builder.set_bolt(table, SqlAppendBolt(rows)).shuffle_grouping("rows")
            elif server == "one" or databases == 2:
                state = SqlState(
                    table, key="word string", value="n bigint, total bigint", url=url, semantics=states
                )
                bolt = SqlStateBolt(state, n=Count(), total=Sum("x"))
                builder.set_committer_bolt(table, bolt, 2).fields_grouping("rows", "word")
        return Program(builder.build(), ROWS)


# --- who acts ---------------------------------------------------------------------------------------------


class Person(Actor):
    """Somebody who types a command, and never gets further once the process has died."""

    world: RewindingWorld
    has_died = False

    def pass_point(self, where: str, whose: object = "") -> None:
        if self.has_died:
            raise CrashError
        try:
            super().pass_point(where, whose)
        except CrashError:
            self.has_died = True
            raise

    def databases(self) -> list[Any]:
        return [server.open(self) for server in self.world.servers]


class Saver(Person):
    def __str__(self) -> str:
        return f"savepoint s{self.number}"

    def step(self) -> None:
        world, name = self.world, f"s{self.number}"
        world.note(f"{self} begins")
        try:
            made = create_savepoint_in("t", name, self.databases(), timeout_seconds=0.0)
        except CrashError:
            self._end("crashes")
        except ServiceUnavailableError as error:
            self._end(f"is not made: {error}")
        else:
            self._end(f"is made of txid {made.txid}")
        world.learn_of(name)


class Dropper(Person):
    def __str__(self) -> str:
        return f"dropper {self.number}"

    def step(self) -> None:
        world = self.world
        if not world.saved:
            return
        name = world.chances.pick(sorted(world.saved))
        world.note(f"{self} drops {name}")
        try:
            drop_savepoint_in("t", name, self.databases())
        except CrashError:
            self._end("crashes")
        except (ServiceUnavailableError, UsageError) as error:
            self._end(f"cannot drop it: {error}")
        world.learn_of(name)


class Rewinder(Person):
    to = ""

    def __str__(self) -> str:
        return f"rewinder {self.number}"

    def step(self) -> None:
        world = self.world
        self.began_at = world.steps_done
        world.note(f"{self} goes back to {self.to}")
        try:
            identity = self.store.read_identity()
            assert identity is not None
            done = rewinding.rewind_in("t", self.to, identity, self.store, self.databases(), world.codec)
        except CrashError:
            self._end("crashes")
        except ServiceUnavailableError as error:
            self._end(f"cannot go back: {error}")
        except (FencedError, StaleAttemptError, ProgressMismatchError) as error:
            if world.steps_done == self.began_at:
                raise
            self._end(f"is too late: {error}")
        except UsageError as error:
            self._end(f"is refused: {error}")
            self.refused = str(error)
        else:
            self._end(f"has gone back to txid {done.to} by txid {done.txid}")
            world.rewinds += 1


class RewindingDriver(SimulatedDriver):
    """A driver that finishes rewinds when it starts."""

    settlers = (rewind_command.settle,)


class _OneAfterTheOther:
    """Stands in for a pool of threads, whose order no seed decides."""

    def __init__(self, *_: object) -> None:
        """Start nothing."""

    def __enter__(self) -> _OneAfterTheOther:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing runs."""

    map = staticmethod(map)


# --- the oracle -------------------------------------------------------------------------------------------


@dataclass
class Ledger:
    """What a database's ledger says that counts, after each of its txids: the batches and the places."""

    attempts: dict[int, int] = field(default_factory=dict)
    counted: dict[int, tuple[int, ...]] = field(default_factory=lambda: {0: ()})
    places: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})
    ranges: dict[int, dict[str, tuple[int, int]]] = field(default_factory=dict)
    last: int = 0
    is_open: bool = False

    def rows(self, txid: int) -> list[tuple[str, int]]:
        """Return the records that count as of a txid."""
        return [
            row
            for one in self.counted[txid]
            for name, (start, end) in self.ranges[one].items()
            for row in ROWS[name][start:end]
        ]


def ledger_of(file: sqlite3.Connection, txids: Mapping[str, int]) -> Ledger:
    """Read a ledger. Raises WrongResultError for a batch that does not begin where the one before it ends,
    and for a rewind that went elsewhere than to its savepoint."""
    found = Ledger()
    query = "SELECT txid, attempt, status, metas, details FROM txstream_batch WHERE topology = 't' ORDER BY 1"
    for txid, attempt, status, stored, told in file.execute(query):
        if status != COMMITTED:
            found.is_open = True
            break
        if txid != found.last + 1:
            raise WrongResultError(f"txid {found.last} is followed by {txid}")
        metas, rewound = json.loads(stored), json.loads(told or "{}").get("rewind")
        ranges = {name: (one["start"], one["end"]) for name, one in metas["partitions"].items()}
        if rewound is not None:
            to, name = rewound["to"], rewound["savepoint"]
            if txids.get(name, to) != to:  # it may not be known yet that it is whole
                raise WrongResultError(f"txid {txid} went to {to} for savepoint {name} of txid {txids[name]}")
            found.counted[txid], places = found.counted[to], found.places[to]
            carried = {name: one["end"] for name, one in metas.get("carried", {}).items()}
            if ranges or carried != places:
                raise WrongResultError(f"txid {txid} went to {ranges} {carried}, and txid {to} is {places}")
        else:
            places = dict(found.places[found.last])
            for name, (start, end) in ranges.items():
                if places.get(name, 0) != start:
                    raise WrongResultError(f"txid {txid} takes {name} from {start}, not {places}")
                places[name] = end
            found.ranges[txid] = ranges
            found.counted[txid] = (*found.counted[found.last], txid)
        found.places[txid], found.attempts[txid], found.last = places, attempt, txid
    return found


def folded(rows: Sequence[tuple[str, int]]) -> dict[str, tuple[int, int]]:
    """Return how many rows each word has, and the sum of their numbers."""
    found: dict[str, tuple[int, int]] = {}
    for word, number in rows:
        n, total = found.get(word, (0, 0))
        found[word] = n + 1, total + number
    return found


@dataclass
class RewindingWorld(MutableWorld):
    """One history of savepoints and rewinds; `saved` are the savepoints that are whole, and
    `txids` has the txid of each that ever was."""

    saved: set[str] = field(default_factory=set)
    txids: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    rewinds: int = 0
    checks: int = 0
    people: int = 0

    def make_tree(self) -> Tree:
        self.current, self.stored = 1, dict[int, tuple[Any, bytes]]()
        return _Watched(self)

    def _begin(self) -> None:
        super()._begin()
        for server in self.servers:
            for name in savepoints.saved_in(server.database, "t"):
                remove(server.database, "t", name)
        files = {server.name: server.database.sessions.engine.url.database for server in self.servers}
        self.files = {name: sqlite3.connect(file) for name, file in files.items()}

    def driver_of(self, program: Program, number: int) -> SimulatedDriver:
        return RewindingDriver(self, number, program)

    def _step(self) -> None:
        if self.current > 1 and self.happens("savepoint"):
            Saver(self, self._next_person()).step()
        if self.happens("drop"):
            Dropper(self, self._next_person()).step()
        if self.current > 2 and self.happens("rewind"):
            self.rewinder().step()
        super()._step()

    def _next_person(self) -> int:
        self.people += 1
        return self.people

    def rewinder(self) -> Rewinder:
        """Somebody who goes back to a savepoint, whole or not, or to a batch before the last."""
        rewinder = Rewinder(self, self._next_person())
        with self._without_faults():
            names = sorted({one.name for one in saved("t", [server.database for server in self.servers])})
        back = self.chances.pick([1, 1, 1, 2, 3])
        older = [name for name in names if self.txids.get(name, self.current) < self.current - 1]
        names = older if older and self.chances.happens(0.8) else names
        by_number = not names or self.chances.happens(0.4 if self.semantics is Semantics.OPAQUE else 0.1)
        rewinder.to = str(max(0, self.current - 1 - back)) if by_number else self.chances.pick(names)
        return rewinder

    # --- the oracle -----------------------------------------------------------------------------------

    def look(self, tree: Tree) -> None:
        """Look at ZooKeeper, which has changed."""
        paths, nodes = Paths(ROOT, "t"), tree.copy()
        if paths.current not in nodes:
            return
        position = StoredCurrent.decode(nodes[paths.current].data, paths.current)
        if position.txid < self.current:
            raise WrongResultError(f"the next txid was {self.current} and is {position.txid} now")
        self.current = position.txid
        last = Txid(position.txid - 1)
        if (meta := paths.meta(last)) in nodes:
            found = position.attempt, nodes[meta].data
            if self.stored.setdefault(last, found) != found:
                raise WrongResultError(f"txid {last} was {self.stored[last]} and is {found} now")

    def learn_of(self, name: str) -> None:
        """Look at a savepoint after a command about it. What is whole holds what counted as of its txid."""
        with self._without_faults():
            found = {one.name: one for one in saved("t", [server.database for server in self.servers])}
        if name not in found or not found[name].is_whole:
            self.saved.discard(name)
        elif name not in self.saved:
            self.saved.add(name)
            self.txids[name] = txid = found[name].txid
            self.attempts[name] = next(iter(found[name].parts.values())).attempt
            attempt = self.attempts[name]

            def as_of(ledger: Ledger) -> int | None:
                """Nothing is known any more of an attempt that was undone while the savepoint was made."""
                return txid if ledger.attempts.get(txid) == attempt else None

            self._look_at_tables(f"savepoint {name}", as_of, f"__sp_{name}")

    def committed(self, driver: SimulatedDriver, attempt: TransactionAttempt) -> None:
        super().committed(driver, attempt)
        self._look(f"after the commit of {attempt}")

    def _look(self, when: str) -> None:
        # While the last batch is open, somebody is committing.
        self._look_at_tables(when, lambda ledger: None if ledger.is_open else ledger.last)

    def _look_at_tables(self, when: str, as_of: Callable[[Ledger], int | None], suffix: str = "") -> None:
        """Keep in `wrong` how tables differ from what counts as of a txid."""
        try:
            for name, file in self.files.items():
                ledger = ledger_of(file, self.txids)
                txid = as_of(ledger)
                if txid is None:
                    continue
                for _, table in [one for one in TABLES if one[0] == name]:
                    self.checks += 1
                    rows, query = ledger.rows(txid), "SELECT word, n, total FROM "
                    if table == "appended":
                        found: Any = Counter(file.execute(f"SELECT word, x FROM appended{suffix}"))
                        expected: Any = Counter(rows)
                    else:
                        found = {word: tuple(row) for word, *row in file.execute(f"{query}{table}{suffix}")}
                        expected = folded(rows)
                    if found != expected:
                        told = f"{table}{suffix} of txid {txid} has {found}, not {expected}"
                        raise WrongResultError(f"{when}, {told}")
        except WrongResultError as error:
            self.note(f"wrong: {error}")
            self.wrong = self.wrong or error

    def _check(self, when: str) -> None:
        self._look(when)
        ledgers = [ledger_of(file, self.txids) for file in self.files.values()]
        if self.wrong is not None:
            raise self.wrong
        for ledger in ledgers:
            if ledger.is_open or ledger.places[ledger.last] != self.log.ends:
                raise WrongResultError(f"{when}, a ledger ends with {ledger}, not {self.log.ends}")
            for txid, (attempt, _) in self.stored.items():
                if ledger.attempts[txid] != attempt:
                    raise WrongResultError(f"{when}, {ledger} has txid {txid} of another attempt: {attempt}")
        if any(one.attempts != ledgers[0].attempts for one in ledgers):
            raise WrongResultError(f"{when}, databases differ: {ledgers}")

    # --- without faults -------------------------------------------------------------------------------

    def _finish(self, last: SimulatedDriver) -> None:
        """Finish, go back once more, which must succeed where there is a savepoint, and finish again."""
        super()._finish(last)
        (ledger, *_) = [ledger_of(file, self.txids) for file in self.files.values()]
        # The batch of some was undone after its commit, whose answer was lost.
        names = [one for one in sorted(self.saved) if ledger.attempts[self.txids[one]] == self.attempts[one]]
        if not names:
            return
        done, rewinder = self.rewinds, Rewinder(self, self._next_person())
        rewinder.to = self.chances.pick(names)
        if self.txids[rewinder.to] >= self.current - 1:
            return
        rewinder.step()
        assert self.rewinds > done, f"nothing keeps {rewinder} from going back to {rewinder.to}"
        self._look(f"after {rewinder}")
        super()._finish(self.new_driver())


class _Watched(Tree):
    """A ZooKeeper whose changes the world sees."""

    def __init__(self, world: RewindingWorld) -> None:
        super().__init__()
        self._world = world

    def _apply_all(self, operations: Sequence[Operation]) -> None:
        super()._apply_all(operations)
        self._world.look(self)


def simulate_rewinds(
    seed: int,
    semantics: Semantics,
    databases: int = 1,
    rules: Rules = REAL,
    more: Mapping[str, float] | None = None,
    state: Semantics | None = None,
) -> RewindingWorld:
    """Run one history. Raises AssertionError, with the history and the seed, when anything is not right."""
    world = RewindingWorld(
        program_of(semantics, state or semantics, databases),
        Chances(seed),
        None,
        {**REWIND_FAULTS, **(more or {})},
        STEPS,
        on_sqlite=1.0,
        rules=rules,
    )
    with mock.patch.object(savepoints, "ThreadPoolExecutor", _OneAfterTheOther):
        try:
            return tell_of(world, f"seed {seed}, {semantics} spout, {state or semantics} state")
        finally:
            for file in world.files.values():
                file.close()
