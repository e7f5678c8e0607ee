"""Dead letters are retried in batches of their own: each counts once, in whatever moment a driver dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from support.memory_zookeeper import MemoryZooKeeper
from support.states import attempt

from txstream import (
    BasicBolt,
    Count,
    DeadLetters,
    MemorySpout,
    OpaqueSpout,
    OutputCollector,
    SqlState,
    SqlStateBolt,
    Topology,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    Tuple,
)
from txstream.api.spouts import SpoutContext
from txstream.cli import letter_commands, operate
from txstream.cli.main import main
from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.dead_letters import DeadLetter, LetterKey
from txstream.core.errors import CorruptStateError, DecodeError, ServiceUnavailableError
from txstream.core.fault_points import Point
from txstream.core.transaction import Txid
from txstream.engine.batch.execution_plan import compile_topology
from txstream.engine.batch.messages import WorkOrder
from txstream.engine.batch.worker import _decoded
from txstream.inspect import replay as run_again, why
from txstream.plugins.formats.schema_registry import UnknownSchemaError
from txstream.settings import Settings
from txstream.spouts.kafka import Decode, KafkaSource
from txstream.spouts.memory import MemoryRange
from txstream.state import TopologyStates, open_database
from txstream.testing import TopologyTest
from txstream.zookeeper import Kind

BOTH = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
WORDS = ["a", "bad1", "b", "bad2", "a", "bad3", "bad1"]
DYING = [
    Point.BEFORE_COMMIT, Point.INSIDE_COMMIT, Point.BETWEEN_COMMITS, Point.AFTER_COMMIT, Point.BEFORE_ADVANCE,
    Point.AFTER_ADVANCE,
]  # fmt: skip


class Parse(BasicBolt):
    """Fails at the words that are in `bad`."""

    output = "word string"
    bad: ClassVar[set[str]] = set()

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["word"] in self.bad:
            raise ValueError(tup["word"])
        collector.emit((tup["word"],))


class Rig:
    """A topology over words, with a table in each of two databases."""

    def __init__(self, folder: Path, source: MemorySpout, spout: Any) -> None:
        self.urls = [f"sqlite:///{folder / name}.db" for name in ("first", "second")]
        self.test = TopologyTest(self.topology(spout(source)), database=self.urls[0])

    def topology(self, spout: Any) -> Topology:
        asked = DeadLetters(max_share=1.0)
        builder = TransactionalTopologyBuilder("words", "words", spout, dead_letters=asked)
        builder.set_bolt("parse", Parse()).shuffle_grouping("words")
        for number, url in enumerate(self.urls):
            state = SqlState(f"words_{number}", key="word string", value="n bigint", url=url)
            store = builder.set_committer_bolt(f"store{number}", SqlStateBolt(state, n=Count()))
            store.fields_grouping("parse", "word")
        return builder.build()

    def ask(self, **body: Any) -> None:
        """Ask for a retry, whether a driver lives or not."""
        self.test._control.driver.requests.ask(Kind.RETRY, body)

    def retry(self, **body: Any) -> None:
        """Ask for a retry, and wait until its batch is committed."""
        self.ask(**body)
        self.test.settle()
        self.test.commit()

    def counts(self) -> dict[str, int]:
        first, second = self.test.table("words_0"), self.test.table("words_1")
        assert first == second
        return dict(first)

    def letters(self) -> list[tuple[str, str]]:
        database = open_database(self.urls[0])
        found = [(one.place, one.status) for one in database.dead_letters("words")]
        database.close()
        return found


@pytest.fixture
def source() -> Iterator[MemorySpout]:
    with MemorySpout("word string", {"p": WORDS}) as made:
        yield made


@pytest.fixture
def make(tmp_path: Path, source: MemorySpout) -> Iterator[Any]:
    made: list[Rig] = []

    def rig(spout: Any) -> Rig:
        Parse.bad = {"bad1", "bad2", "bad3"}
        made.append(Rig(tmp_path, source, spout))
        made[0].test.__enter__()
        made[0].test.run()
        assert made[0].counts() == {"a": 2, "b": 1}
        return made[0]

    yield rig
    for one in made:
        one.test.close()


def counted(*without: str) -> dict[str, int]:
    return dict(Counter(word for word in WORDS if word not in without))


@BOTH
def test_what_succeeds_counts_and_what_fails_again_stays_once(make: Any, spout: Any) -> None:
    rig = make(spout)
    Parse.bad = {"bad2"}
    rig.retry()
    assert rig.counts() == counted("bad2")
    assert rig.letters() == [
        ("p@1", "retried in txid 2"),
        ("p@3", "dead"),
        ("p@5", "retried in txid 2"),
        ("p@6", "retried in txid 2"),
    ]
    Parse.bad = set()
    rig.retry()
    assert rig.counts() == counted()
    assert rig.letters()[1] == ("p@3", "retried in txid 3")
    rig.ask()
    rig.test.settle()
    rig.test.run()
    assert (rig.counts(), rig.test.current) == (counted(), 4)


@BOTH
def test_a_retry_in_which_all_fail_again_changes_nothing(
    make: Any, spout: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make(spout)
    before = rig.letters()
    caplog.clear()
    rig.retry()
    assert (rig.counts(), rig.letters()) == ({"a": 2, "b": 1}, before)
    told = [record.getMessage() for record in caplog.records if "dead letter" in record.getMessage()]
    assert told == ["txid 2: 4 dead letters failed again"], "one line, without a record's content"


def test_replay_and_why_know_what_was_retried(make: Any, source: MemorySpout) -> None:
    rig = make(OpaqueSpout)
    Parse.bad = set()
    rig.retry()
    rig.test.crash()
    settings = Settings(database=rig.urls[0])
    asked = rig.topology(OpaqueSpout(source))
    again = run_again(asked, 2, settings)
    assert (again.same, again.batches[0].records) == (True, 4)
    found = why(asked, "words_0", ["bad1"], settings)
    assert (found.is_complete, [(part.txid, part.delta) for part in found.parts]) == (True, [(2, {"n": 2})])


def test_replay_and_why_leave_out_what_the_batch_left_out(make: Any, source: MemorySpout) -> None:
    """Also with code that could process it."""
    rig = make(OpaqueSpout)
    rig.test.crash()
    Parse.bad = set()
    settings = Settings(database=rig.urls[0])
    asked = rig.topology(OpaqueSpout(source))
    again = run_again(asked, 1, settings)
    assert (again.same, again.batches[0].records) == (True, 3)
    found = why(asked, "words_0", ["a"], settings)
    assert (found.is_complete, [(part.txid, part.delta) for part in found.parts]) == (
        True,
        [(1, {"n": 1}), (1, {"n": 1})],
    )


@BOTH
def test_only_what_failed_in_some_components(make: Any, spout: Any) -> None:
    rig = make(spout)
    Parse.bad = set()
    rig.ask(components=["store0"])
    rig.test.settle()
    rig.test.run()
    assert rig.counts() == {"a": 2, "b": 1}
    rig.retry(components=["store0", "parse"])
    assert rig.counts() == counted()


@BOTH
def test_it_is_asked_while_nothing_runs(make: Any, spout: Any, source: MemorySpout) -> None:
    rig = make(spout)
    rig.test.crash()
    Parse.bad = set()
    rig.ask()
    source.append("p", "later")
    rig.test.restart()
    rig.test.run()
    assert rig.counts() == counted() | {"later": 1}
    assert {status for _, status in rig.letters()} == {"retried in txid 2"}, "the next run takes it up first"


@BOTH
@pytest.mark.parametrize("at", DYING)
def test_a_driver_dies_in_a_retry(make: Any, spout: Any, at: Point, source: MemorySpout) -> None:
    rig = make(spout)
    Parse.bad = {"bad2"}
    rig.ask()
    rig.test.settle()
    source.append("p", *["c"] * 3)
    rig.test.crash(at=at, txid=2)
    rig.test.restart()
    rig.test.run()
    rig.retry()  # it was granted, so a plan that only the dead driver knew is asked for again
    assert rig.counts() == counted("bad2") | {"c": 3}
    statuses = [status for _, status in rig.letters()]
    assert [status == "dead" for status in statuses] == [False, True, False, False]
    if spout is TransactionalSpout:
        assert "retried in txid 2" in statuses, "its plan is stored, so it goes on by itself"


@BOTH
def test_a_letter_of_a_batch_that_only_one_database_has_is_not_retried(
    make: Any, spout: Any, source: MemorySpout
) -> None:
    """The next attempt undoes it, and an opaque one reads its record again: it would count twice."""
    rig = make(spout)
    source.append("p", "bad1")
    rig.test.crash(at=Point.BETWEEN_COMMITS, txid=2)
    assert ("p@7", "dead") in rig.letters(), "the first database has it"
    Parse.bad = set()
    rig.ask()
    rig.test.restart()
    rig.test.run()
    assert rig.counts() == {**counted(), "bad1": 3}
    found = rig.letters()
    assert len(set(found)) == len(found)
    assert [status for _, status in found if status == "dead"] == []


@BOTH
def test_a_retry_that_only_one_database_has_is_made_again(
    make: Any, spout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next attempt undoes what the first database has, so the records are as dead as before."""
    rig = make(spout)
    Parse.bad = {"bad2"}
    commit, failures = TopologyStates.commit, list[Exception]()

    def fails_once(states: TopologyStates, *arguments: Any, **options: Any) -> None:
        if "second" in states.display_url and not failures:
            failures.append(ServiceUnavailableError("the second database is away"))
            raise failures[0]
        commit(states, *arguments, **options)

    monkeypatch.setattr(TopologyStates, "commit", fails_once)
    rig.ask()
    rig.test.settle()
    while rig.test.current < 3:
        rig.test.commit()
        rig.test.settle()
    assert failures
    assert rig.counts() == counted("bad2")
    assert [place for place, status in rig.letters() if status == "dead"] == ["p@3"]


def drop(rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Type `dead-letters drop`, and return its exit status and what it says."""
    zookeeper = MemoryZooKeeper()
    zookeeper.memory = rig.test._control._world.tree
    monkeypatch.setattr(letter_commands, "open_zookeeper", zookeeper.opened)
    capsys.readouterr()
    asked = ["--database", rig.urls[0], "--zookeeper", "127.0.0.1:1"]
    status = main(["dead-letters", "drop", "words", "--yes", *asked])
    return status, "".join(capsys.readouterr())


PLANNED = [Point.BEFORE_COMMIT, Point.INSIDE_COMMIT, Point.BETWEEN_COMMITS, Point.AFTER_COMMIT]


@pytest.mark.parametrize("at", [*PLANNED, Point.BEFORE_ADVANCE])
def test_letters_that_a_stored_plan_names_cannot_be_dropped(
    make: Any, at: Point, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = make(TransactionalSpout)
    Parse.bad = {"bad2"}
    rig.ask()
    rig.test.settle()
    rig.test.crash(at=at, txid=2)
    status, told = drop(rig, monkeypatch, capsys)
    assert (status, "needed by txid 2" in told, "txstream run" in told) == (1, True, True), told
    assert len(rig.letters()) == 4
    rig.test.restart()
    rig.test.run()
    assert rig.counts() == counted("bad2")
    rig.test.crash()
    assert drop(rig, monkeypatch, capsys) == (0, "deleted 4 dead letters of words\n")


@BOTH
def test_letters_of_a_batch_that_only_one_database_has_cannot_be_dropped(
    make: Any,
    spout: Any,
    source: MemorySpout,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rig = make(spout)
    source.append("p", "bad1")
    rig.test.crash(at=Point.BETWEEN_COMMITS, txid=2)
    status, told = drop(rig, monkeypatch, capsys)
    assert (status, "p@7 of txid 2" in told) == (1, True), told
    assert len(rig.letters()) == 5
    rig.test.restart()
    rig.test.run()
    rig.test.crash()
    assert drop(rig, monkeypatch, capsys)[0] == 0


@pytest.mark.parametrize("at", [Point.BEFORE_COMMIT, Point.BETWEEN_COMMITS])
def test_a_plan_that_may_be_committed_in_part_and_misses_a_letter_ends_the_run(make: Any, at: Point) -> None:
    """Whoever deleted the row did it by hand."""
    rig = make(TransactionalSpout)
    Parse.bad = {"bad2"}
    rig.ask()
    rig.test.settle()
    rig.test.crash(at=at, txid=2)
    with closing(open_database(rig.urls[0])) as database:
        assert database.drop_dead_letters("words", [LetterKey(Txid(1), "p@1")]) == 1
    rig.test.restart()
    if at is Point.BEFORE_COMMIT:
        rig.test.run()
        assert rig.counts() == {"a": 2, "b": 1, "bad3": 1, "bad1": 1}, "no database had it"
        return
    with pytest.raises(CorruptStateError, match=r"txid 2: it retries the record p@1 of txid 1.*is gone"):
        rig.test.run()
    assert rig.test.table("words_1") == {"a": 2, "b": 1}


def test_a_retry_takes_no_letter_of_its_own_txid(make: Any, source: MemorySpout) -> None:
    """One database has it from an earlier attempt, which the retry undoes; the record comes later."""
    rig = make(OpaqueSpout)
    source.append("p", "bad1")
    rig.test.crash(at=Point.BETWEEN_COMMITS, txid=2)
    assert ("p@7", "dead") in rig.letters()
    Parse.bad = set()
    rig.ask()
    rig.test.restart()
    rig.test.run()
    assert rig.counts() == {**counted(), "bad1": 3}
    assert all(status == "retried in txid 2" for _, status in rig.letters())


@BOTH
@pytest.mark.parametrize("most_bytes", [40, 3], ids=["several together", "each larger than a batch may be"])
def test_large_ones_are_retried_in_several_batches(
    make: Any, spout: Any, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is larger than a batch may be goes alone, and holds up no other."""
    monkeypatch.setattr("txstream.engine.letters.retries.MOST_BYTES", most_bytes)
    rig = make(spout)
    Parse.bad = set()
    rig.retry()
    while any(status == "dead" for _, status in rig.letters()):
        rig.test.commit()
    assert rig.counts() == counted()
    batches = len({status for _, status in rig.letters()})
    assert batches == 4 if most_bytes == 3 else 1 < batches < 4


# --- what is asked, stored and sent ------------------------------------------------------------------------


def test_code_that_asks_for_no_dead_letters_refuses(make: Any) -> None:
    rig = make(OpaqueSpout)
    rig.test.restart(replace(rig.test.topology, dead_letters=None))
    requests = rig.test._control.driver.requests
    request = requests.ask(Kind.RETRY, {})
    rig.test.settle()
    answer = requests.wait_answer(request, 0.0)
    assert "asks for no dead letters" in answer.refused


def test_a_pause_comes_first(make: Any) -> None:
    rig = make(OpaqueSpout)
    Parse.bad = set()
    rig.test._control.driver.requests.ask(Kind.PAUSE, {})
    rig.ask()
    rig.test.settle()
    rig.test.run()
    assert rig.counts() == {"a": 2, "b": 1}
    rig.test._control.driver.requests.ask(Kind.RESUME, {})
    rig.test.settle()
    rig.test.commit()
    assert rig.counts() == counted()


def test_the_command_asks(make: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    zookeeper = MemoryZooKeeper()
    monkeypatch.setattr(operate, "open_zookeeper", zookeeper.opened)
    store = zookeeper.run_topology("words", driver=False)
    words = ["dead-letters", "retry", "words", "--component", "parse", "--zookeeper", "127.0.0.1:1"]
    assert main(words) == 1
    assert "nothing runs topology 'words' now" in capsys.readouterr().err
    assert main([*words, "--later", "--state-database", "sqlite:///other.db"]) == 0
    assert capsys.readouterr().out == "words: is to retry its dead letters\n"
    (asked,) = store.read_requests().waiting
    assert (asked.kind, asked.body) == ("retry", {"components": ["parse"]})


class Broken(MemorySpout):
    """Its letters cannot be decoded."""

    raised: ClassVar[type[Exception]] = DecodeError

    def decoded(self, letters: Sequence[DeadLetter]) -> pa.RecordBatch:
        raise self.raised("schema 9 is not there")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (UnknownSchemaError, DecodeError),
        (DecodeError, DecodeError),
        (ServiceUnavailableError, ServiceUnavailableError),
    ],
)
def test_a_letter_that_cannot_be_decoded_stays_dead_and_ends_no_run(
    raised: type[Exception], expected: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is decoded by a worker, which may end by that, and not by the driver."""
    monkeypatch.setattr(Broken, "raised", raised)
    with Broken("word string", {"p": WORDS}) as broken:
        rig = Rig(tmp_path, broken, OpaqueSpout)
        context = SpoutContext("words", "words", {})
        plan = compile_topology(rig.topology(OpaqueSpout(broken)), context, "0")
        letters = [DeadLetter("p@1", None, None, 1, None, None, b"{}", None, "parse", "E", "", "")]
        with pytest.raises(expected, match="schema 9 is not there"):
            _decoded(plan, letters)


def test_a_batch_of_retries_is_stored() -> None:
    codec: MetaCodec[Any] = MetaCodec(MemoryRange)
    letters = [LetterKey(Txid(2), "p@7"), LetterKey(Txid(1), "p@9")]
    metas = BatchMetas(carried={"p": MemoryRange(4, 4)}).retrying(letters)
    assert codec.encode(metas)["retried"] == [[1, "p@9"], [2, "p@7"]]
    assert (codec.decode(dict(codec.encode(metas)), "here"), metas.has_work) == (metas, True)
    stored: list[Any] = [{}, [1], [[1]], [["1", "p@9"]]]
    for damaged in stored:
        with pytest.raises(CorruptStateError, match="'retried' is a JSON array"):
            codec.decode({"partitions": {}, "retried": damaged}, "here")


def test_a_work_order_takes_the_letters_along() -> None:
    letters = (kafka(b"\xff\x00"), kafka(None, 9, b"[]"))
    order = WorkOrder(attempt(1, 1), 1, [{}], letters=letters)
    assert WorkOrder.from_json(order.to_json()).letters == letters


# --- Kafka's records ---------------------------------------------------------------------------------------


def kafka(value: bytes | None, offset: int = 3, headers: bytes | None = None) -> DeadLetter:
    place = f"orders/1@{offset}"
    return DeadLetter(
        place, "orders", 1, offset, 1_767_000_000_000, b"k", value, headers, "parse", "E", "", ""
    )


def test_kafkas_records_are_decoded_as_kafka_gave_them() -> None:
    source = KafkaSource("orders", decode=Decode("json", "n bigint"), kafka_columns=["key", "offset"])
    rows = source.decoded([kafka(b'{"n": 1}'), kafka(b'{"n": 2}', 9)]).to_pylist()
    assert rows == [{"n": 1, "key": b"k", "offset": 3}, {"n": 2, "key": b"k", "offset": 9}]
    assert source.decoded([]).schema == source.output
    with pytest.raises(DecodeError, match="offset 3 of topic 'orders', partition 1"):
        source.decoded([kafka(b"{")])


def test_kafkas_columns_are_all_there() -> None:
    source = KafkaSource("orders", decode=Decode("binary"))
    headers = b'[["trace", "AP8="], ["none", null]]'
    (row,) = source.decoded([kafka(b"\xff", headers=headers)]).to_pylist()
    assert (row["topic"], row["partition"], row["value"]) == ("orders", 1, b"\xff")
    shown: Sequence[Any] = row["headers"]
    assert shown == [{"key": "trace", "value": b"\x00\xff"}, {"key": "none", "value": None}]
    assert row["timestamp"].timestamp() == 1_767_000_000
