"""The world of a topology with dead letters: records that fail by themselves, operators who ask for retries.

The oracle knows which records must be dead, which may be, and which never are. A record that the repaired
code can process is dead until a retry counts it, once. Of each record either all effects are in the tables or
one dead letter is there; the dead letters say what the ledger says.

In histories `at_once` the bolt that fails is the only one that takes the spout's tuples, so the first attempt
leaves out what fails twice in a row.

In histories that `refuse`, the last database refuses, within the commit, to update the row of one word: once
a txid has counted it, each record of this word in a later txid is dead. A transactional run then ends if a
database may have counted the batch, until somebody lifts that rule.
"""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast
from unittest import mock

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
from txstream.api.stable_hash import task_of
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import StateValueError
from txstream.core.fault_points import CrashError
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch import record_search
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.executor_failures import Failure
from txstream.engine.batch.messages import WorkOrder
from txstream.engine.batch.record_search import FailingRecord
from txstream.engine.batch.runner_contract import BatchResult, BatchRunner
from txstream.engine.batch.sought import Sought
from txstream.engine.loop.event_loop import EventLoop
from txstream.plugins.proof.simulation.chances import Chances
from txstream.plugins.proof.simulation.driver import SimulatedDriver
from txstream.plugins.proof.simulation.program import Program
from txstream.plugins.proof.simulation.stores import Server
from txstream.plugins.proof.simulation.tasks import Runner
from txstream.plugins.proof.simulation.truth import Truth
from txstream.plugins.proof.simulation.world import FAULTS, ON_SQLITE, WrongResultError
from txstream.plugins.proof.stores import layout
from txstream.plugins.proof.stores.merging import Key
from txstream.state import StateBackend
from txstream.state.records import COMMITTED
from txstream.state.stored_letters import DEAD, StoredDeadLetter, retried_in
from txstream.zookeeper import Kind, OperatorRequests
from txstream.zookeeper.paths import ROOT, Paths

LETTER_FAULTS: Mapping[str, float] = {**FAULTS, "repaired": 0.01, "retry asked": 0.03}
STEPS = 60
ROWS: Mapping[str, list[str]] = {
    "p": ["sour-p", "bad", "broken", "c", "moody", "kills", "alone", "b", "broken", "first", "a", "b"],
    "q": ["sour-q", "bad", "a", "last", "b", "torn", "c", "alone", "alone", "a", "kills", "torn"],
    "r": ["sour-r", "c", "first", "last", "c", "broken", "a", "bad"],
}
TWINS: Mapping[str, list[str]] = {"s": ["a", "twin", "twin", "b", "twin", "c", "twin", "a", "twin"]}
WORDS = {
    f"{name}@{number}": word for name, words in {**ROWS, **TWINS}.items() for number, word in enumerate(words)
}
ALWAYS = {"bad", "alone", "kills"}
"""Dead for ever, whatever code runs."""
REPAIRED = {"broken", "torn"}
"""Dead only for the code before the repair."""
SOMETIMES = {"sour-p", "sour-q", "sour-r"}
"""Dead or not, as they were met."""
TWIN = "twin"
"""Dead if an earlier txid has counted it, in histories that refuse."""
_DYING = {TWIN, *ALWAYS, *REPAIRED, *SOMETIMES}
_MOODY = {"moody", *SOMETIMES}
_TOGETHER = {"first", "last"}
_TASKS = 2
_MOST_KNOWN = 50_000
assert task_of(("first",), _TASKS) == task_of(("last",), _TASKS)


class Check(BasicBolt):
    """Fails at some words: always, before the repair, for the first time, in some calls only, or by killing
    its process."""

    output = "word string"
    calls: ClassVar[Counter[str]] = Counter()

    def __init__(self, *, repaired: bool, exact: bool = False) -> None:
        self.repaired = repaired
        self.exact = exact

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        word = tup["word"]
        collector.emit((word,))
        if word == "bad" or (word == "broken" and not self.repaired):
            raise ValueError(word)
        if word == "kills":
            raise CrashError
        if not self.exact:
            self._moods(word)

    def _moods(self, word: str) -> None:
        failing = _is_failing(word)
        self.calls[word] += 1
        if failing:
            raise ValueError(word)


class Finish(BatchBolt):
    """Fails at the end of a task's tuples, behind an exchange: if a word is among them, always or before the
    repair, or for the first times that two are together."""

    output = "word string"
    calls: ClassVar[Counter[str]] = Counter()

    def __init__(self, *, repaired: bool, exact: bool = False) -> None:
        self.repaired = repaired
        self.exact = exact

    def prepare(self, context: Any, collector: OutputCollector, batch_id: Any) -> None:
        self.collector = collector
        self.words: list[str] = []

    def execute(self, tup: Tuple) -> None:
        self.words.append(tup["word"])

    def finish_batch(self) -> None:
        found = set(self.words)
        if "alone" in found or ("torn" in found and not self.repaired):
            raise RuntimeError("alone or torn")
        if found >= _TOGETHER and not self.exact:
            failing = _is_failing("together")
            self.calls["together"] += 1
            if failing:
                raise RuntimeError("together")
        for word in self.words:
            self.collector.emit((word,))


_CALLS = (Check.calls, Finish.calls)


def _is_failing(word: str, behind: int = 0) -> bool:
    """Return whether the next call for this word, or for those that fail together, or the one so many calls
    behind it, fails."""
    if word == "together":
        return Finish.calls[word] + behind < 3
    if word == "moody":
        return not Check.calls[word] + behind
    return word in SOMETIMES and 1 <= Check.calls[word] + behind < 15


class Mark(BasicBolt):
    """Marks every word that it gets, bad ones too: an effect beside the bolts that fail."""

    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit((tup["word"],))


@functools.cache
def program_of(
    semantics: Semantics,
    databases: int,
    repaired: bool,
    refuses: bool = False,
    exact: bool = False,
    at_once: bool = False,
) -> Program:
    """Return the program before or after the repair; an `exact` one does not know moods."""
    spout: Any = OpaqueSpout if semantics is Semantics.OPAQUE else TransactionalSpout
    with MemorySpout("word string", {"none": []}) as source:
        builder = TransactionalTopologyBuilder(
            "t",
            "words",
            spout(source),
            max_attempts=100,
            dead_letters=DeadLetters(max_share=1.0),
        )
        check, finish = Check(repaired=repaired, exact=exact), Finish(repaired=repaired, exact=exact)
        builder.set_bolt("mark", Mark()).shuffle_grouping("check" if at_once else "words")
        builder.set_bolt("check", check, parallelism=2).shuffle_grouping("words")
        builder.set_bolt("finish", finish, parallelism=_TASKS).fields_grouping("check", "word")
        for number in range(databases):
            url = "memory://two" if number else None
            for name, above in ((f"counts{number}", "finish"), (f"marks{number}", "mark")):
                state = SqlState(name, key="word string", value="n bigint", url=url)
                store = builder.set_committer_bolt(f"{name}-store", SqlStateBolt(state, n=Count()))
                store.fields_grouping(above, "word")
        return Program(builder.build(), {**ROWS, **TWINS} if refuses else ROWS)


@functools.cache
def truth_of(semantics: Semantics, databases: int, refuses: bool, at_once: bool) -> Truth:
    program = program_of(semantics, databases, True, refuses, exact=True, at_once=at_once)
    dead = [
        (name, int(number))
        for name, _, number in (place.partition("@") for place, word in WORDS.items() if word in _DYING)
        if name in program.rows
    ]
    return Truth(program.topology, program.rows, dead=dead)


class _Known(NamedTuple):
    """What came of a part of the log, once, and which calls bolts counted meanwhile."""

    attempt: TransactionAttempt
    result: Any
    calls: Sequence[tuple[Counter[str], Counter[str]]]


_failure = record_search._Search._failure


class LetterRunner(Runner):
    """Has bolts compute each part of the log once for all histories, also where it fails, and in searches:
    beside the code, nothing but whether their counted calls fail now decides what comes of it."""

    computed: ClassVar[dict[Hashable, _Known]] = {}

    def _run(self, attempt: TransactionAttempt, metas: BatchMetas[Any], spare: int) -> BatchResult:
        width = min(self._world.width, _TASKS)
        found: BatchResult = self._once(
            attempt, metas, (width, spare), lambda: super(LetterRunner, self)._run(attempt, metas, spare)
        )
        return found

    def find(
        self,
        attempt: TransactionAttempt,
        parts: Sequence[BatchMetas[Any]],
        *,
        most: int,
        seconds: float,
        sought: Sought | None = None,
    ) -> list[FailingRecord]:
        def failure(search: Any, order: WorkOrder, part: BatchMetas[Any]) -> Failure | None:
            found: Failure | None = self._once(
                attempt, part, ("search", sought and sought.digest), lambda: _failure(search, order, part)
            )
            return found

        with mock.patch.object(record_search._Search, "_failure", failure):
            return super().find(attempt, parts, most=most, seconds=seconds, sought=sought)

    def _once(
        self, attempt: TransactionAttempt, metas: BatchMetas[Any], how: Hashable, compute: Callable[[], Any]
    ) -> Any:
        ranges = sorted((name, taken.start, taken.end) for name, taken in metas.partitions.items())
        excluded = [(one.partition, one.offset) for one in metas.excluded]
        places = [key.place for key in metas.retried] + [
            f"{name}@{at}"
            for name, start, end in ranges
            for at in range(start, end)
            if (name, at) not in excluded
        ]
        words = {WORDS[place] for place in places}
        program = self._driver.program
        world = cast(LetterWorld, self._world)
        code = program if words & REPAIRED else (world.semantics, len(program.databases), world.at_once)
        how = (how, world.rules)  # a mistake may change what bolts make of it
        key = (code, how, *ranges, None, *excluded, None, *places, None, *_failing(words))
        found = self.computed.get(key)
        if found is None:
            before = [Counter(calls) for calls in _CALLS]
            try:
                result = compute()
            except (Exception, CrashError) as error:  # noqa: BLE001 - raised below, and each time again
                result = error.with_traceback(None)  # its frames hold the whole world
                result.__context__ = None
            counted = [(calls, calls - old) for calls, old in zip(_CALLS, before, strict=True)]
            if len(self.computed) > _MOST_KNOWN:
                self.computed.clear()
            self.computed[key] = found = _Known(attempt, result, counted)
        else:
            for calls, more in found.calls:
                calls.update(more)
        if not isinstance(found.result, BaseException):
            return found.result
        failure = copy.copy(found.result)
        failure.args = tuple(str(one).replace(str(found.attempt), str(attempt)) for one in failure.args)
        raise failure


def _failing(words: set[str]) -> list[tuple[str, bool]]:
    """Return at which of these words bolts fail now, as far as that depends on earlier calls, and whether in
    the call after it too. No part of the log calls a bolt for one of them more often."""
    counted = words & _MOODY | ({"together"} if words >= _TOGETHER else set())
    return sorted((word, _is_failing(word, 1)) for word in counted if _is_failing(word))


class LetterDriver(SimulatedDriver):
    """A driver that operators steer. `left_out` counts what the tasks of its first attempts have left out."""

    left_out = 0

    def processed(self, attempt: TransactionAttempt, result: BatchResult) -> None:
        self.left_out += len(result.left_out)

    def start_engine(self) -> Callable[[ExecutionPlan], BatchRunner]:
        return lambda plan: LetterRunner(self, plan)

    def _start(self) -> None:
        super()._start()
        if self.loop is not None:
            self.store.tell_of_requests()

    def step(self) -> None:
        try:
            super().step()
        except StateValueError as error:
            if not cast(LetterWorld, self.world).may_end(self):
                raise
            self._end(f"ends: {error}")


@dataclass
class LetterWorld(MutableWorld):
    """A world that looks at the dead letters, too, after every commit."""

    databases: int = 1
    refuses: bool = False
    at_once: bool = False

    def __post_init__(self) -> None:
        self.is_repaired = self.is_last_asked = False
        self.is_lifted = not self.refuses
        # How many drivers there were then. Each of them may have met a refusal, and hear of it late.
        self.lifted_at = 0
        super().__post_init__()

    @property
    def requests(self) -> OperatorRequests:
        return OperatorRequests(self.tree, Paths(ROOT, self.topology_id))

    def driver_of(self, program: Program, number: int) -> SimulatedDriver:
        program = program_of(
            self.semantics, self.databases, self.is_repaired, self.refuses, at_once=self.at_once
        )
        program.results._known.clear()  # what succeeded once may fail this time
        return LetterDriver(self, number, program)

    def putting(self, server: Server, space: str, key: Key, value: Any) -> None:
        if self.is_lifted or server.url != self.servers[-1].url or key != (TWIN,):
            return
        table = f"counts{self.databases - 1}"
        stored = server.spaces.get(layout.rows_space(table), {}).get(key)
        if space == layout.rows_space(table) and stored and value and stored[-1] < value[-1]:
            raise StateValueError(f"table {table!r}: the row of {TWIN!r} may not change").of_row(table, TWIN)

    def may_end(self, driver: SimulatedDriver) -> bool:
        """Return whether a refused value may end a driver: one of a batch that a database may have counted,
        when nothing may undo that. Nothing is half-written then."""
        if self.semantics is not Semantics.TRANSACTIONAL or self._is_spared(driver):
            return False
        had_faults = self.has_faults
        with self._without_faults():
            self._check_so_far(driver, "after a refused value has ended a driver")
        if not had_faults:
            self._lift()
        return self.wrong is None

    def _is_spared(self, driver: SimulatedDriver) -> bool:
        return self.is_lifted and driver in self.drivers[self.lifted_at :]

    def _lift(self) -> None:
        self.note("the database takes what it has refused")
        self.is_lifted, self.lifted_at = True, len(self.drivers)

    def _step(self) -> None:
        if not self.is_repaired and self.happens("repaired"):
            self.note("the code is repaired")
            self.is_repaired = True
        if self.happens("retry asked"):
            self.ask()
        super()._step()

    def ask(self) -> None:
        """Ask for a retry. Drivers that have begun are told of it."""
        self.note("an operator asks for a retry")
        with self._without_faults():
            self.requests.ask(Kind.RETRY, {})
        for driver in self.drivers:
            if driver.is_alive and driver.loop is not None:
                driver.store.tell_of_requests()

    def run(self, *, alone: bool = False) -> None:
        """Run the history. All is committed once by the code before the repair, without faults, if that has
        not come by then; so there is something to retry, with faults again."""
        self.chances.steps(self.steps, self._take_step)
        self._end_faults()
        first = self.new_driver()
        while not (super().is_finished_by(first) and self.log.is_all_shown):
            first.step()
            if self.wrong is not None:
                raise self.wrong
            if not first.is_alive and self.refuses and self.is_lifted:
                first = self.new_driver()
            assert first.is_alive, f"{first} ended, though nothing can go wrong any more"
            if super().is_finished_by(first):
                self.log.show_all()
        self.is_repaired = self.has_faults = True
        self.ask()
        self.chances.steps(self.steps // 2, self._take_step)
        self._end_faults()
        if self.semantics is Semantics.TRANSACTIONAL and not self.is_lifted:
            self._lift()
        self._finish(self.new_driver())

    def is_finished_by(self, driver: SimulatedDriver) -> bool:
        if not super().is_finished_by(driver) or not self.log.is_all_shown:
            return super().is_finished_by(driver)
        if not self.is_last_asked:
            self.is_last_asked = True
            self.ask()
        loop: EventLoop | None = driver.loop
        assert loop is not None
        return not self.requests.read().waiting and not loop._retries.are_asked

    # --- the oracle -----------------------------------------------------------------------------------

    def committed(self, driver: SimulatedDriver, attempt: TransactionAttempt) -> None:
        with self._without_faults():
            self._check_so_far(driver, f"after the commit of {attempt}")
        super().committed(driver, attempt)

    def _check_so_far(self, driver: SimulatedDriver, when: str) -> None:
        databases = [target.database for target in driver.targets]
        truth = cast(Truth, self.expected)
        wrong = self._wrong_letters(databases[:1]) or self._wrong_twins(databases[-1])
        for target in driver.targets:
            wrong = wrong or self._wrong_so_far(truth, target)
        if wrong is not None:
            self.wrong = self.wrong or WrongResultError(f"{when}, {wrong}")

    def _check(self, when: str) -> None:
        databases = [target.database for target in self.drivers[-1].targets]
        wrong = (
            self._wrong_letters(databases)
            or self._wrong_twins(databases[-1])
            or self._wrong_at_the_end(databases)
        )
        if wrong is not None:
            raise WrongResultError(f"{when}, {wrong}")
        super()._check(when)

    def _letters(self, databases: list[StateBackend]) -> list[StoredDeadLetter]:
        return [one for database in databases for one in database.dead_letters(self.topology_id)]

    def _wrong_letters(self, databases: list[StateBackend]) -> str | None:
        """Say how the dead letters differ from the ledger, or from what must be dead; None if they do not."""
        kept = self._letters(databases)
        rows = [row for row in databases[0].batches(self.topology_id) if row.status == COMMITTED]
        batches = list(zip(rows, self._decoded(rows), strict=True))
        told = {
            (row.txid, f"{one.partition}@{one.offset}") for row, metas in batches for one in metas.excluded
        }
        if sorted(told) != sorted((one.txid, one.place) for one in kept):
            return f"the ledger leaves out {sorted(told)}, and dead letters are {_shown(kept)}"
        retried = {key: retried_in(row.txid) for row, metas in batches for key in metas.retried}
        status = {(one.txid, one.place): one.status for one in kept if one.status != DEAD}
        if {(key.txid, key.place): said for key, said in retried.items()} != status:
            return f"the ledger retries {retried}, and dead letters are {_shown(kept)}"
        if len(retried) != sum(len(metas.retried) for _, metas in batches):
            return f"a dead letter is retried twice: {[metas.retried for _, metas in batches]}"
        places = [one.place for one in kept]
        twice = [place for place, times in Counter(places).items() if times > 1]
        never = [place for place in places if WORDS[place] not in _DYING]
        counted = [one.place for one in kept if one.status != DEAD and WORDS[one.place] in ALWAYS]
        missing = {
            f"{name}@{number}"
            for _, metas in batches
            for name, taken in metas.partitions.items()
            for number in range(taken.start, taken.end)
            if WORDS[f"{name}@{number}"] in ALWAYS
        }.difference(places)
        if twice or never or counted or missing:
            return f"two dead letters of {twice}, {never} are dead, {counted} retried, {missing} not dead"
        return None

    def _wrong_twins(self, database: StateBackend) -> str | None:
        """Say which record is dead though nothing refused it, or counted though its database refused it."""
        rows = [row for row in database.batches(self.topology_id) if row.status == COMMITTED]
        is_there = False
        for row, metas in zip(rows, self._decoded(rows), strict=True):
            dead = {f"{one.partition}@{one.offset}" for one in metas.excluded}
            taken = {
                f"{name}@{at}" for name, one in metas.partitions.items() for at in range(one.start, one.end)
            } - dead
            taken.update(key.place for key in metas.retried)
            refused, counted = (
                sorted(place for place in places if WORDS[place] == TWIN) for places in (dead, taken)
            )
            if refused and not is_there:
                return f"txid {row.txid} leaves out {refused}, which nothing refused"
            if counted and is_there and not self.is_lifted:
                return f"txid {row.txid} counts {counted}, which the database refused"
            is_there = is_there or bool(counted)
        return None

    def _wrong_at_the_end(self, databases: list[StateBackend]) -> str | None:
        """Say what differs from what is left once all rows are committed and all that can be retried is."""
        dead = {one.place for one in self._letters(databases) if one.status == DEAD}
        taken = {*REPAIRED, TWIN} if self.is_lifted else REPAIRED
        left = [place for place in dead if WORDS[place] in taken]
        if left:
            return f"{left} are dead, though they were to be retried"
        counts = Counter(
            word
            for place, word in WORDS.items()
            if place not in dead and place.partition("@")[0] in self.program.rows
        )
        wanted = {(word,): (n,) for word, n in counts.items()}
        for table, rows in self.tables().items():
            if dict(rows) != wanted:
                return f"{table} is {rows}, not {wanted}"
        return None


def _shown(letters: list[StoredDeadLetter]) -> list[str]:
    return sorted(f"{one.place} of txid {one.txid} ({one.status})" for one in letters)


def simulate_letters(
    seed: int,
    semantics: Semantics,
    databases: int,
    rules: Rules = REAL,
    more: Mapping[str, float] | None = None,
    *,
    refuses: bool = False,
    at_once: bool = False,
) -> LetterWorld:
    """Run one history. Raises AssertionError, with the history and the seed, when anything is not right."""
    Check.calls.clear()
    Finish.calls.clear()
    world = LetterWorld(
        program_of(semantics, databases, repaired=False, refuses=refuses, at_once=at_once),
        Chances(seed),
        truth_of(semantics, databases, refuses, at_once),
        {**LETTER_FAULTS, **(more or {})},
        STEPS,
        on_sqlite=0.0 if refuses else ON_SQLITE,
        rules=rules,
        databases=databases,
        refuses=refuses,
        at_once=at_once,
    )
    return tell_of(world, f"seed {seed}, {semantics} spout")
