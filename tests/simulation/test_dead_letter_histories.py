"""Histories with records that fail by themselves: whatever crashes, sleeps or is lost, of each record either
all its effects are in the tables or exactly one dead letter is there. With a guard taken away, it shows."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar
from unittest import mock

import pytest

from simulation.histories import REAL, MutableWorld, Rules, tell_of
from txstream import (
    BasicBolt,
    BatchBolt,
    Count,
    DeadLetters,
    MemorySpout,
    OpaqueSpout,
    OutputCollector,
    SqlState,
    SqlStateBolt,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    Tuple,
)
from txstream.batch_metas import BatchMetas
from txstream.coordinator import Coordinator
from txstream.engine.loop.isolation import Isolation
from txstream.simulation.chances import Chances
from txstream.simulation.plain_fold import Tables
from txstream.simulation.program import Program
from txstream.simulation.world import FAULTS, WrongResultError
from txstream.state.commit_protocol import TopologyStates
from txstream.state.records import Commit
from txstream.state.store.backend import _Adapter

CI_SEEDS = 12
MOST_SEEDS = 300
WHEN = datetime(2026, 1, 2, tzinfo=UTC)
SOAK_SEEDS = int(os.environ.get("TXSTREAM_SIMULATION_SEEDS", "20000"))
ROWS: Mapping[str, list[str]] = {
    "p": ["a", "bad", "b", "c", "moody", "a", "alone", "b", "bad", "c", "a", "b"],
    "q": ["bad", "a", "b", "b", "moody", "c", "alone", "alone", "a", "c"],
    "r": ["c", "c", "a", "bad"],
}
DEAD = {
    (partition, number)
    for partition, words in ROWS.items()
    for number, word in enumerate(words)
    if word in ("bad", "alone")
}
GOOD = Counter(word for words in ROWS.values() for word in words if word not in ("bad", "alone"))
KINDS = [(spout, databases) for spout in (OpaqueSpout, TransactionalSpout) for databases in (1, 2)]
EVERY_KIND = pytest.mark.parametrize(("spout", "databases"), KINDS)


class Check(BasicBolt):
    """Fails at a bad word always, at a moody one for the first time."""

    output = "word string"
    moods: ClassVar[Counter[str]] = Counter()

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        word = tup["word"]
        if word == "moody":
            self.moods[word] += 1
        if word == "bad" or (word == "moody" and self.moods[word] == 1):
            raise ValueError(word)
        collector.emit((word,))


class Finish(BatchBolt):
    """Fails at the end of a task's tuples, behind an exchange, if one word is among them."""

    output = "word string"

    def prepare(self, context: Any, collector: OutputCollector, batch_id: Any) -> None:
        self.collector = collector
        self.words: list[str] = []

    def execute(self, tup: Tuple) -> None:
        self.words.append(tup["word"])

    def finish_batch(self) -> None:
        if "alone" in self.words:
            raise RuntimeError("alone")
        for word in self.words:
            self.collector.emit((word,))


@functools.cache
def program_of(spout: Any, databases: int) -> Program:
    with MemorySpout("word string", {"none": []}) as source:
        builder = TransactionalTopologyBuilder(
            "t",
            "words",
            spout(source),
            max_attempts=100,
            dead_letters=DeadLetters(max_share=1.0),
        )
        builder.set_bolt("check", Check(), parallelism=2).shuffle_grouping("words")
        builder.set_bolt("finish", Finish(), parallelism=2).fields_grouping("check", "word")
        for number in range(databases):
            url = "memory://two" if number else None
            state = SqlState(f"counts{number}", key="word string", value="n bigint", url=url)
            store = SqlStateBolt(state, n=Count())
            builder.set_committer_bolt(f"store{number}", store).fields_grouping("finish", "word")
        expected = {f"counts{number}": dict(GOOD) for number in range(databases)}
        return Program(builder.build(), ROWS, expected=expected)


@dataclass
class LetterWorld(MutableWorld):
    """A world that also looks at the dead letters."""

    def _check(self, when: str) -> None:
        super()._check(when)
        databases = [target.database for target in self.drivers[-1].targets]
        kept = [one for database in databases for one in database.dead_letters(self.topology_id)]
        found = Counter(one.place for one in kept)
        wanted = Counter(f"{partition}@{number}" for partition, number in DEAD)
        if found != wanted:
            raise WrongResultError(
                f"{when}, dead letters: {found - wanted} too many, {wanted - found} missing"
            )
        for database in databases:
            told = {
                (row.txid, f"{one.partition}@{one.offset}")
                for row, metas in self._batches(database)
                for one in metas.excluded
            }
            if told != {(one.txid, one.place) for one in kept}:
                raise WrongResultError(f"{when}, the ledger leaves out {told}")

    def _batches(self, database: Any) -> Iterator[tuple[Any, BatchMetas[Any]]]:
        for row in database.batches(self.topology_id):
            yield row, self.codec.decode(row.metas, "ledger")


def simulate(
    seed: int,
    spout: Any,
    databases: int,
    rules: Rules = REAL,
    more: Mapping[str, float] | None = None,
) -> LetterWorld:
    program = program_of(spout, databases)
    Check.moods.clear()
    program.results._known.clear()
    expected: Tables = {
        f"counts{number}": {(w,): (n,) for w, n in GOOD.items()} for number in range(databases)
    }
    faults = {**FAULTS, **(more or {})}
    world = LetterWorld(program, Chances(seed), expected, faults, 60, rules=rules)
    return tell_of(world, f"seed {seed}, {spout.__name__}")


@EVERY_KIND
def test_each_record_is_counted_or_dead(spout: Any, databases: int) -> None:
    for seed in range(CI_SEEDS):
        simulate(seed, spout, databases)


@pytest.mark.soak
@pytest.mark.timeout(0)
@EVERY_KIND
def test_each_record_is_counted_or_dead_in_many_more_histories(spout: Any, databases: int) -> None:
    for seed in range(CI_SEEDS, SOAK_SEEDS):
        simulate(seed, spout, databases)


# --- with a guard taken away ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake(Rules):
    """The real rules, but for one method."""

    owner: type[Any] = object
    method: str = ""
    instead: Callable[..., Any] = print
    shows: str = ""

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        with mock.patch.object(self.owner, self.method, self.instead), super().in_force():
            yield


_commit, _run = TopologyStates.commit, Isolation.run


def _commit_and_then_write(states: TopologyStates, commit: Commit, **options: Any) -> None:
    _commit(states, replace(commit, letters=()), **options)
    with states.store.begin(states.life, "dead letters") as here:
        here.write_dead_letters(commit.attempt, commit.letters, WHEN)


LETTERS_ARE_WRITTEN_AFTER_THE_COMMIT = Mistake(
    owner=TopologyStates,
    method="commit",
    instead=_commit_and_then_write,
    shows="A crash between the two transactions loses the record.",
)


def _undo_nothing(*_: Any) -> None:
    return


LETTERS_ARE_NOT_UNDONE = Mistake(
    owner=_Adapter,
    method="undo_dead_letters",
    instead=_undo_nothing,
    shows="A replay finds the rows of the attempt before it.",
)


def _forget_the_set(*_: Any) -> list[Any]:
    return []


THE_SET_IS_NOT_IN_THE_PLAN = Mistake(
    owner=Coordinator,
    method="leave_out",
    instead=_forget_the_set,
    shows="The ledger says that the batch holds a record that is dead.",
)


def _keep_half(isolation: Any, attempt: Any, metas: BatchMetas[Any], *given: Any) -> Any:
    found = _run(isolation, attempt, metas, *given)
    kept = tuple(one for one in found.metas.excluded if one.offset % 2)
    return found._replace(metas=replace(found.metas, excluded=kept))


SOME_RECORDS_ARE_NEITHER_COUNTED_NOR_KEPT = Mistake(
    owner=Isolation,
    method="run",
    instead=_keep_half,
    shows="A record that was found is left out of the batch, and nothing keeps it.",
)


MUTANTS = [
    (LETTERS_ARE_WRITTEN_AFTER_THE_COMMIT, OpaqueSpout, 1),
    (LETTERS_ARE_NOT_UNDONE, OpaqueSpout, 2),
    (LETTERS_ARE_NOT_UNDONE, TransactionalSpout, 2),
    (THE_SET_IS_NOT_IN_THE_PLAN, OpaqueSpout, 1),
    (THE_SET_IS_NOT_IN_THE_PLAN, TransactionalSpout, 1),
    (SOME_RECORDS_ARE_NEITHER_COUNTED_NOR_KEPT, OpaqueSpout, 1),
]


@pytest.mark.ci
@pytest.mark.parametrize(("mutant", "spout", "databases"), MUTANTS)
def test_a_missing_guard_is_found(mutant: Mistake, spout: Any, databases: int) -> None:
    for seed in range(MOST_SEEDS):
        try:
            simulate(seed, spout, databases, mutant, {"crash": 0.03, "commit late": 0.1})
        except AssertionError:
            return
    pytest.fail(f"{mutant.shows}: not found in {MOST_SEEDS} histories")
