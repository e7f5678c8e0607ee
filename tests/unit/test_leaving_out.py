"""Bad records that are known where they are read cost no further attempt: the batch commits in its first one
without them. Whatever is not certain fails the attempt, as ever, and the next one searches."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from txstream import (
    BasicBolt,
    BatchBolt,
    Count,
    DeadLetters,
    Max,
    MemorySpout,
    OpaqueSpout,
    OutputCollector,
    SqlAppendBolt,
    SqlState,
    SqlStateBolt,
    SqlTable,
    Sum,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    Tuple,
    bolt,
)
from txstream.api.spouts import SpoutContext, Unfit
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import BoltError, DecodeError, ShortBatchError, StateValueError
from txstream.core.fault_points import Point
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.engine.batch.execution_plan import ExecutionPlan, compile_topology
from txstream.engine.batch.messages import ANSWER, Answer, Element, WorkOrder
from txstream.engine.batch.sizing import work_order
from txstream.engine.batch.worker import run_first_stage
from txstream.engine.batch.worker_process import WorkerProcess
from txstream.engine.letters.rows import LetterReader
from txstream.plugins.local.local_runner import InProcessRunner
from txstream.spouts.memory import MemoryEmitter, MemoryRange
from txstream.testing import TopologyTest

BOTH = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
ALL = DeadLetters(max_per_batch=100, max_share=1.0)
WORDS = [f"w{number % 7}" for number in range(60)]
AT = {11: "bad", 40: "bad-too", 59: "bad"}
for at, bad in AT.items():
    WORDS[at] = bad


class Parse(BasicBolt):
    """Emits a tuple, and then fails at what begins with "bad"."""

    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit((tup["word"],))
        if tup["word"].startswith("bad"):
            raise ValueError(f"{tup['word']} is no word")


@bolt(output="word string")
def parse(tup: Tuple) -> Iterator[str]:
    yield tup["word"]
    if tup["word"].startswith("bad"):
        raise ValueError(f"{tup['word']} is no word")


class Remembers(Parse):
    """Keeps something of each tuple, so nobody knows what a bad one has changed."""

    def prepare(self, context: Any) -> None:
        self.seen: list[str] = []

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        self.seen.append(tup["word"])
        super().execute(tup, collector)


class Opens(Parse):
    """Has opened something in its worker process."""

    def prepare_worker(self, context: Any) -> Any:
        return "a connection"


class Sends(BasicBolt):
    """Sends what it emits at once."""

    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        batch = pa.record_batch([pa.array([tup["word"]])], schema=pa.schema([("word", pa.string())]))
        collector.emit_batch(batch)
        if tup["word"].startswith("bad"):
            raise ValueError("too late")


class Network(Parse):
    """Fails in a way that a network that is away for a moment fails, too."""

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        try:
            super().execute(tup, collector)
        except ValueError:
            raise RuntimeError("no answer") from TimeoutError("2 s")


class Moody(Parse):
    """Fails at a bad word for the first time only, in each process."""

    calls: ClassVar[Counter[str]] = Counter()

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        self.calls[tup["word"]] += 1
        if tup["word"].startswith("bad") and self.calls[tup["word"]] == 1:
            raise ValueError("moody")
        collector.emit((tup["word"],))


class Finish(BatchBolt):
    """Counts in an instance, and fails in `execute`, as a bolt that aggregates may."""

    output = "word string"

    def prepare(self, context: Any, collector: OutputCollector, batch_id: Any) -> None:
        self.collector = collector

    def execute(self, tup: Tuple) -> None:
        if tup["word"].startswith("bad"):
            raise ValueError(tup["word"])
        self.collector.emit((tup["word"],))


def builder_of(
    source: MemorySpout, spout: Any, first: Any, letters: DeadLetters | None = ALL
) -> TransactionalTopologyBuilder:
    builder = TransactionalTopologyBuilder(
        "words", "words", spout(source), dead_letters=letters, max_attempts=3
    )
    builder.set_bolt("parse", first, parallelism=2).shuffle_grouping("words")
    state = SqlState("counts", key="word string", value="n bigint")
    store = builder.set_committer_bolt("store", SqlStateBolt(state, n=Count()))
    store.fields_grouping("parse", "word")
    return builder


class Seen:
    """What a test finds in a database."""

    def __init__(self, path: Path) -> None:
        connection = sqlite3.connect(path)
        self.counts = dict(connection.execute("SELECT word, n FROM counts"))
        columns = "place, component, exception, message, traceback, status"
        self.letters = connection.execute(
            f"SELECT {columns} FROM txstream_dead_letter ORDER BY place"
        ).fetchall()
        connection.close()


def run(path: Path, spout: Any, first: Any, words: Sequence[str] = WORDS) -> tuple[int, Seen, Any]:
    """Returns how many attempts the batch took, and what came of it."""
    with (
        MemorySpout("word string", {"p": words[:30], "q": words[30:]}) as source,
        TopologyTest(builder_of(source, spout, first), database=f"sqlite:///{path}") as test,
    ):
        test.run()
        attempts = test.attempts(1)
        return len(attempts), Seen(path), attempts[-1]


GOOD = dict(Counter(word for word in WORDS if not word.startswith("bad")))
PLACES = ["p@11", "q@10", "q@29"]


@BOTH
@pytest.mark.parametrize("first", [Parse(), parse], ids=["class", "function"])
def test_a_record_at_which_a_bolt_raises_is_left_out_in_the_first_attempt(
    spout: Any, first: Any, tmp_path: Path
) -> None:
    attempts, seen, last = run(tmp_path / "state.db", spout, first)
    assert attempts == 1
    assert seen.counts == GOOD
    assert [place for place, *_ in seen.letters] == PLACES
    for _, component, exception, message, traceback, status in seen.letters:
        assert (component, exception, status) == ("parse", "ValueError", "dead")
        assert "is no word" in message
        assert "raise ValueError" in traceback
    assert last.records == 57


@BOTH
@pytest.mark.parametrize(
    "first", [Remembers(), Opens(), Sends(), Network(), Finish()], ids=lambda one: type(one).__name__
)
def test_what_is_not_certain_takes_an_attempt_that_searches(spout: Any, first: Any, tmp_path: Path) -> None:
    attempts, seen, _ = run(tmp_path / "state.db", spout, first)
    assert attempts == 2
    assert seen.counts == GOOD
    assert [place for place, *_ in seen.letters] == PLACES


@BOTH
def test_a_record_that_fails_only_once_is_counted(spout: Any, tmp_path: Path) -> None:
    Moody.calls.clear()
    attempts, seen, _ = run(tmp_path / "state.db", spout, Moody())
    assert attempts == 2
    assert seen.counts == dict(Counter(WORDS))
    assert not seen.letters


@BOTH
def test_more_than_the_limit_ends_the_run_as_ever(spout: Any, tmp_path: Path) -> None:
    limits = DeadLetters(max_per_batch=2, max_share=1.0)
    path = tmp_path / "state.db"
    with (
        MemorySpout("word string", {"p": WORDS[:30], "q": WORDS[30:]}) as source,
        TopologyTest(builder_of(source, spout, Parse(), limits), database=f"sqlite:///{path}") as test,
        pytest.raises(BoltError, match="is no word") as ended,
    ):
        test.run()
    assert any("more records of the batch fail by themselves" in note for note in ended.value.__notes__)
    seen = Seen(path)
    assert (seen.counts, seen.letters) == ({}, [])


class Worse(Parse):
    """Other code, for which one more word is bad."""

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["word"] == "w3":
            raise ValueError("w3 is no word")
        super().execute(tup, collector)


class WorseRemembers(Worse):
    def prepare(self, context: Any) -> None:
        self.seen: list[str] = []

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        self.seen.append(tup["word"])
        super().execute(tup, collector)


@pytest.mark.parametrize(("most", "dead"), [(3, 0), (4, 4)])
@pytest.mark.parametrize("worse", [Worse(), WorseRemembers()], ids=["at once", "searched"])
def test_what_a_stored_plan_leaves_out_counts_in_its_limit(
    worse: Any, most: int, dead: int, tmp_path: Path
) -> None:
    """Its driver died when it had stored that the plan leaves out three; the next one finds one more."""
    limits = DeadLetters(max_per_batch=most, max_share=1.0)
    words = [word if word != "w3" else "w4" for word in WORDS]
    words[5] = "w3"
    path = tmp_path / "state.db"
    with (
        MemorySpout("word string", {"p": words[:30], "q": words[30:]}) as source,
        TopologyTest(
            builder_of(source, TransactionalSpout, Parse(), limits), database=f"sqlite:///{path}"
        ) as test,
    ):
        test.crash(at=Point.BEFORE_COMMIT, txid=1)
        test.restart(builder_of(source, TransactionalSpout, worse, limits))
        if dead:
            test.run()
        else:
            with pytest.raises(BoltError, match="w3 is no word") as ended:
                test.run()
            assert any("more records of the batch fail" in note for note in ended.value.__notes__)
    assert len(Seen(path).letters) == dead


class Decoding(MemoryEmitter):
    """Cannot decode what begins with "no"."""

    def emit_fitting(
        self, attempt: TransactionAttempt, metas: Mapping[str, Any], unfit: Unfit
    ) -> Iterator[tuple[Mapping[str, int], pa.RecordBatch, Sequence[int] | None]]:
        for partition, meta in metas.items():
            for rows in self.emit(attempt, partition, meta):
                words = rows.column("word").to_pylist()
                offsets = [meta.start + at for at, word in enumerate(words) if not word.startswith("no")]
                for at, word in enumerate(words):
                    if word.startswith("no"):
                        unfit(partition, meta.start + at, DecodeError(f"{word} is not decoded"))
                left = rows.take(pa.array([offset - meta.start for offset in offsets], pa.int64()))
                yield {partition: left.num_rows}, left, offsets


class Encoded(MemorySpout):
    def emitter(self, context: SpoutContext) -> MemoryEmitter:
        return Decoding(super().emitter(context)._log)

    def undecoded(self) -> Any:
        return _Plain(self)


class _Plain(MemorySpout):
    def __init__(self, of: MemorySpout) -> None:
        self.__dict__.update(of.__dict__)


@BOTH
def test_a_value_that_cannot_be_decoded_is_left_out_and_offsets_behind_it_are_right(
    spout: Any, tmp_path: Path
) -> None:
    words = [*WORDS]
    words[5], words[10], words[12] = "no", "nothing", "no"
    path = tmp_path / "state.db"
    with (
        Encoded("word string", {"p": words}) as source,
        TopologyTest(builder_of(source, spout, Parse()), database=f"sqlite:///{path}") as test,
    ):
        test.run()
        assert len(test.attempts(1)) == 1
    seen = Seen(path)
    bad = {at for at, word in enumerate(words) if word.startswith(("no", "bad"))}
    assert seen.counts == dict(Counter(word for at, word in enumerate(words) if at not in bad))
    assert {(place, component) for place, component, *_ in seen.letters} == {
        (f"p@{at}", "words" if words[at].startswith("no") else "parse") for at in bad
    }
    assert {exception for _, component, exception, *_ in seen.letters if component == "words"} == {
        "DecodeError"
    }


class Keeping(Decoding):
    """Has at hand what it has read, if that is less than `at_most` bytes."""

    at_most = 0
    is_kept = False

    def keep_stored(self, most_bytes: int) -> None:
        self.is_kept = most_bytes > self.at_most

    def take_stored(self, places: Sequence[tuple[str, int]]) -> pa.Table | None:
        words = [f"kept {name}@{offset}" for name, offset in places]
        return pa.table({"word": words}) if self.is_kept else None


class Kept(Encoded):
    def emitter(self, context: SpoutContext) -> MemoryEmitter:
        return Keeping(super().emitter(context)._log)


@pytest.mark.parametrize("is_kept", [True, False])
def test_only_what_no_worker_has_at_hand_of_bad_records_is_read_again(
    is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Keeping, "at_most", 0 if is_kept else 1 << 60)
    words, read = [*WORDS], list[int]()
    words[5] = words[12] = "no"
    real = LetterReader._read

    def spied(reader: LetterReader, attempt: TransactionAttempt, metas: BatchMetas[Any]) -> Any:
        read.extend(one.offset for one in metas.excluded)
        return real(reader, attempt, metas)

    monkeypatch.setattr(LetterReader, "_read", spied)
    path = tmp_path / "state.db"
    with (
        Kept("word string", {"p": words}) as source,
        TopologyTest(builder_of(source, OpaqueSpout, Parse()), database=f"sqlite:///{path}") as test,
    ):
        test.run()
    connection = sqlite3.connect(path)
    found = connection.execute('SELECT "offset", value FROM txstream_dead_letter ORDER BY 1').fetchall()
    connection.close()
    bad = [5, 11, 12, 40, 59]
    stored = {at: f"kept p@{at}" if is_kept else words[at] for at in bad}
    assert {at: json.loads(value)["word"] for at, value in found} == stored
    assert read == ([] if is_kept else bad)


class Gaps(MemoryEmitter):
    """Has fewer rows than its ranges have positions, and does not say which."""

    def emit(
        self, attempt: TransactionAttempt, partition: str, meta: MemoryRange
    ) -> Iterator[pa.RecordBatch]:
        for rows in super().emit(attempt, partition, meta):
            yield rows.slice(1) if meta.start == 0 else rows


class Compacted(MemorySpout):
    def emitter(self, context: SpoutContext) -> MemoryEmitter:
        return Gaps(super().emitter(context)._log)


def test_an_offset_that_was_counted_over_a_gap_is_not_believed(tmp_path: Path) -> None:
    with Compacted("word string", {"p": WORDS}) as source:
        runner = InProcessRunner(plan_of(source), width=1)
        with pytest.raises(BoltError, match="is no word"):
            runner.run(ATTEMPT, metas_of(), 100)


ATTEMPT = TransactionAttempt(Txid(1), AttemptId(7))


def metas_of(words: Sequence[str] = WORDS, parts: int = 1) -> BatchMetas[MemoryRange]:
    each = len(words) // parts
    return BatchMetas({"pqr"[at]: MemoryRange(0, each) for at in range(parts)})


class Passes(BatchBolt):
    """Emits what it gets."""

    output = "word string"

    def execute(self, tup: Tuple) -> None:
        self.collector.emit((tup["word"],))


class Whim(BasicBolt):
    """Fails, twice in a row, at what the whims of the moment say."""

    output = "word string"
    now: ClassVar[set[str]] = set()

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["word"] in self.now:
            raise ValueError(tup["word"])
        collector.emit((tup["word"],))


def plan_of(
    source: MemorySpout, first: Any = None, *, commit: bool = False, exchange: bool = False
) -> ExecutionPlan:
    builder = TransactionalTopologyBuilder("words", "words", OpaqueSpout(source), parallelism=2)
    parse = builder.set_bolt("parse", first or Parse(), parallelism=2)
    if exchange:
        parse.fields_grouping("words", "word")
    else:
        parse.local_or_shuffle_grouping("words")
    builder.set_bolt("sorts", Passes(), parallelism=2).fields_grouping("parse", "word")
    if commit:
        builder.set_committer_bolt("late", Passes(), parallelism=2).fields_grouping("sorts", "word")
    state = SqlState("counts", key="word string", value="n bigint")
    store = builder.set_committer_bolt("store", SqlStateBolt(state, n=Count()))
    store.fields_grouping("late" if commit else "sorts", "word")
    return compile_topology(builder.build(), SpoutContext("words", "words", {}), "0", capture=True)


def test_a_spark_task_leaves_out_no_more_than_the_batch_may() -> None:
    with MemorySpout("word string", {"p": WORDS}) as source:
        runner = InProcessRunner(plan_of(source), width=1)
        assert len(runner.run(ATTEMPT, metas_of(), 3).left_out) == 3
        for spare in (2, 0):
            with pytest.raises(BoltError, match="is no word"):
                runner.run(ATTEMPT, metas_of(), spare)


def test_a_bolt_behind_an_exchange_knows_whose_tuples_it_gets() -> None:
    with MemorySpout("word string", {"p": WORDS[:30], "q": WORDS[30:]}) as source:
        found = InProcessRunner(plan_of(source, exchange=True), width=2).run(ATTEMPT, metas_of(parts=2), 3)
    assert sorted((one.partition, one.offset) for one in found.left_out) == [("p", 11), ("q", 10), ("q", 29)]
    assert found.records == 57
    words = [
        row["word"] for some in found.emitted if some.component == "sorts" for row in some.tuples.to_pylist()
    ]
    assert Counter(words) == GOOD


def first_stage(plan: ExecutionPlan, order: WorkOrder) -> list[Element]:
    return [
        element
        for spark_task in range(2)
        for element in run_first_stage(plan, spark_task, order, WorkerProcess(plan))
    ]


def answers_of(elements: Sequence[Element]) -> list[Answer]:
    return [Answer.decode(message) for target, message in elements if target == ANSWER]


class Recomputed(InProcessRunner):
    """Computes the first stage twice, as Spark does when an executor is lost, and gives the tasks of the next
    one messages of both executions. `whims` are for the second one."""

    def __init__(self, plan: ExecutionPlan, whims: set[str]) -> None:
        super().__init__(plan, width=2)
        self.whims = whims

    def exchange(self, elements: Any, width: int) -> Any:
        inboxes = super().exchange(elements, width)
        if width == 2 and len(answers_of(elements)) == 2:
            Whim.now = self.whims
            order = work_order(ATTEMPT, metas_of(parts=2), self.plan, self.slots, width=2, spare=9)
            inboxes[1] = super().exchange(first_stage(self.plan, order), width)[1]
        return inboxes


def test_parts_of_two_executions_that_left_out_different_records_never_meet() -> None:
    with MemorySpout("word string", {"p": WORDS[:30], "q": WORDS[30:]}) as source:
        plan = plan_of(source, Whim())
        Whim.now = {"bad"}
        found = Recomputed(plan, {"bad"}).run(ATTEMPT, metas_of(parts=2), 9)
        assert sorted((one.partition, one.offset) for one in found.left_out) == [("p", 11), ("q", 29)]
        for first, second in (({"bad"}, set()), (set(), {"bad"}), ({"bad"}, {"bad-too"})):
            Whim.now = set(first)
            with pytest.raises(ShortBatchError, match="left out other records when computed again"):
                Recomputed(plan, set(second)).run(ATTEMPT, metas_of(parts=2), 9)


def test_the_commit_phase_leaves_out_the_same_records_or_fails() -> None:
    """What was kept for it is lost, so Spark computes it again, with the order of the commit phase."""
    with MemorySpout("word string", {"p": WORDS[:30], "q": WORDS[30:]}) as source:
        plan = plan_of(source, Whim(), commit=True)
        Whim.now = {"bad"}
        runner = InProcessRunner(plan, width=2)
        result = runner.run(ATTEMPT, metas_of(parts=2), 9)
        order = result.to_commit(work_order(ATTEMPT, metas_of(parts=2), plan, {}, width=2, spare=9), None)
        assert order == WorkOrder.from_json(order.to_json())

        Whim.now = {"bad"}
        before = first_stage(plan, work_order(ATTEMPT, metas_of(parts=2), plan, {}, width=2, spare=9))
        Whim.now = set()  # they would pass now
        again = first_stage(plan, order)
        assert [element for element in again if element[0] != ANSWER] == [
            element for element in before if element[0] != ANSWER
        ]
        Whim.now = {"bad", "w1"}
        failure = answers_of(first_stage(plan, order))[0].failure
        assert failure is not None
        assert "w1" in failure.message

        Whim.now = {"bad-too"}
        other = InProcessRunner(plan, width=2).run(ATTEMPT, metas_of(parts=2), 9)
        with pytest.raises(ShortBatchError, match="left out other records when computed again"):
            runner.commit(ATTEMPT, replace(result, kept=other.kept), None)
        assert (
            sum(table["n"].to_numpy().sum() for table in runner.commit(ATTEMPT, result).deltas["store"]) == 58
        )


# --- what a state refuses ---------------------------------------------------------------------------------

DAY = date(2026, 1, 1)
SCHEMA = "word string, x double, d date, n bigint, m bigint"
ROWS: list[tuple[Any, ...]] = [(f"w{number % 7}", 1.0, DAY, number, number) for number in range(60)]
UNFIT: dict[int, tuple[Any, ...]] = {
    11: (None, 1.0, DAY, 11, 11),
    12: ("a\0b", 1.0, DAY, 12, 12),
    40: ("w1", float("nan"), DAY, 40, 40),
    59: ("w1", 1.0, DAY, 59, 2**40),
}
for at, unfit in UNFIT.items():
    ROWS[at] = unfit
UNFIT_PLACES = ["p@11", "p@12", "q@10", "q@29"]
MERGED = SqlStateBolt(
    SqlState("counts", "word string", "n bigint, x double, top int"), n=Count(), x=Sum("x"), top=Max("m")
)
APPENDED = SqlAppendBolt(SqlTable("counts", "x double, d date, m int", key="word string, n bigint"))


@BOTH
@pytest.mark.parametrize("store", [MERGED, APPENDED], ids=["merged", "appended"])
def test_what_a_state_behind_the_source_refuses_is_left_out_in_the_first_attempt(
    spout: Any, store: Any, tmp_path: Path
) -> None:
    with MemorySpout(SCHEMA, {"p": ROWS[:30], "q": ROWS[30:]}) as source:
        builder = TransactionalTopologyBuilder("rows", "rows", spout(source), dead_letters=ALL)
        builder.set_committer_bolt("store", store, parallelism=2).fields_grouping("rows", "word")
        with TopologyTest(builder, database=f"sqlite:///{tmp_path}/state.db") as test:
            test.run()
            assert len(test.attempts(1)) == 1
    connection = sqlite3.connect(tmp_path / "state.db")
    total = "SUM(n)" if store is MERGED else "COUNT(*)"
    assert connection.execute(f"SELECT {total} FROM counts").fetchall() == [(56,)]
    letters = "SELECT place, component, exception FROM txstream_dead_letter ORDER BY place"
    assert connection.execute(letters).fetchall() == [
        (place, "store", "StateValueError") for place in UNFIT_PLACES
    ]
    connection.close()


def test_without_dead_letters_the_worker_that_has_the_tuple_says_what_is_wrong_with_it(
    tmp_path: Path,
) -> None:
    for number, row in enumerate(UNFIT.values()):
        with (
            MemorySpout(SCHEMA, {"p": [*ROWS[:3], row, *ROWS[3:9]]}) as source,
            TopologyTest(plain(source), database=f"sqlite:///{tmp_path}/{number}.db") as test,
            pytest.raises(StateValueError) as ended,
        ):
            test.run()
        assert ended.value.component == "store"
        assert f"in Tuple(word={row[0]!r}" in str(ended.value)


def plain(source: MemorySpout) -> TransactionalTopologyBuilder:
    builder = TransactionalTopologyBuilder("rows", "rows", OpaqueSpout(source))
    builder.set_committer_bolt("store", MERGED).fields_grouping("rows", "word")
    return builder


class Converts(BasicBolt):
    """Emits what its stream cannot hold: an infinite decimal, a number beyond 64 bits, text that is none."""

    output = "word string, price decimal(10,2), n bigint"
    wrong: ClassVar[dict[int, tuple[Any, ...]]] = {
        11: ("a", Decimal("Infinity"), 1),
        40: ("a", Decimal(1), 2**70),
        59: ("\ud800", Decimal(1), 1),
    }

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit(("w", Decimal(1), 1))
        collector.emit(self.wrong.get(tup["n"], ("w", Decimal(1), 1)))


@BOTH
def test_a_tuple_that_makes_a_value_that_its_stream_cannot_hold_is_left_out_in_the_first_attempt(
    spout: Any, tmp_path: Path
) -> None:
    rows = [("w", 1.0, DAY, number, number) for number in range(60)]
    with MemorySpout(SCHEMA, {"p": rows[:30], "q": rows[30:]}) as source:
        builder = TransactionalTopologyBuilder("rows", "rows", spout(source), dead_letters=ALL)
        builder.set_bolt("convert", Converts(), parallelism=2).shuffle_grouping("rows")
        state = SqlState("counts", "word string", "n bigint")
        store = builder.set_committer_bolt("store", SqlStateBolt(state, n=Sum("n")))
        store.fields_grouping("convert", "word")
        with TopologyTest(builder, database=f"sqlite:///{tmp_path}/state.db") as test:
            test.run()
            assert len(test.attempts(1)) == 1
    connection = sqlite3.connect(tmp_path / "state.db")
    assert connection.execute("SELECT word, n FROM counts").fetchall() == [("w", 2 * 57)]
    letters = "SELECT place, component, exception FROM txstream_dead_letter ORDER BY place"
    assert connection.execute(letters).fetchall() == [
        (place, "convert", "TupleError") for place in ("p@11", "q@10", "q@29")
    ]
    connection.close()
