"""State tables as people read them: rows by key, the greatest values, and what a batch changed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from support.lists import each
from support.memory_zookeeper import MemoryZooKeeper
from support.recovering import empty_database
from support.states import PLANNED, PROCESSED, Rig, name_databases, word_table
from support.tables import read_rows
from support.zookeeper_backends import IDENTITY

from txstream import inspect
from txstream.api.schema import parse_schema
from txstream.cli.main import main
from txstream.core.errors import ServiceUnavailableError, StateTableError, UsageError
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid
from txstream.inspect.databases import open_databases
from txstream.inspect.keys import parse_key
from txstream.plugins.audit import delete_command
from txstream.settings import Settings
from txstream.state import Commit, StateDatabase, open_database
from txstream.state.backend import StateBackend

OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL
PLAIN = Semantics.NON_TRANSACTIONAL


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE", "MASTER", "STATE_DATABASES"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def make_rig(sqlite_url: str) -> Iterator[Any]:
    opened: list[StateDatabase] = []

    def make(semantics: Semantics = OPAQUE, url: str = sqlite_url, **table: Any) -> Rig:
        file = Path(url.removeprefix("sqlite:///"))
        if not file.exists():
            file.write_bytes(empty_database())
        database = StateDatabase(url)
        opened.append(database)
        spec = word_table(semantics=semantics, **table)
        return Rig(database, url, spec, uuid=IDENTITY.uuid).join()

    yield make
    for database in opened:
        database.close()


def settings_of(rig: Rig, **more: Any) -> Settings:
    return Settings(database=rig.url, **more)


def begin(rig: Rig, txid: int, deltas: dict[Any, Any]) -> None:
    """Begin a commit from executors, which gets as far as its tasks' writes."""
    under = rig.next(txid)
    commit = Commit(under, {"partitions": {}}, {}, 7, PLANNED, PROCESSED)
    rig.states.begin_commit(commit)
    rig.write(under, deltas)


def keyed(rows: inspect.StateRows) -> dict[str, tuple[Any, Any, Any]]:
    return {
        row.key["word"]: (row.value["n"], None if row.prev is None else row.prev["n"], row.txid)
        for row in rows.rows
    }


# --- tables and rows -------------------------------------------------------------------------------


def test_tables_are_listed_with_their_declaration_and_size(make_rig: Any) -> None:
    rig = make_rig()
    rig.commit(1, {"a": 1, "b": 2})
    (table,) = inspect.states("words", settings_of(rig))
    assert (table.table, table.key, table.value) == ("word_count", "word string", "n bigint")
    assert (table.semantics, table.rows, table.as_of, table.notes) == (OPAQUE, 2, 1, ())
    assert table.database == rig.url


@pytest.mark.parametrize(
    ("semantics", "prev", "txid"), [(OPAQUE, {"n": 4}, 2), (TRANSACTIONAL, None, 2), (PLAIN, None, None)]
)
def test_a_row_by_its_key(make_rig: Any, semantics: Semantics, prev: Any, txid: int | None) -> None:
    rig = make_rig(semantics)
    rig.commit(1, {"a": 4})
    rig.commit(2, {"a": 3})
    found = inspect.get("words", "word_count", ["a"], settings_of(rig))
    (row,) = found.rows
    assert (row.key, row.value, row.prev, row.txid) == ({"word": "a"}, {"n": 7}, prev, txid)
    assert found.as_of == 2
    assert inspect.get("words", "word_count", ["z"], settings_of(rig)).rows == ()


def test_while_executors_commit_an_opaque_table_is_shown_as_before(make_rig: Any) -> None:
    rig = make_rig()
    rig.commit(1, {"a": 4, "b": 2})
    begin(rig, 2, {"a": 10, "c": 1})
    settings = settings_of(rig)
    (table,) = inspect.states("words", settings)
    assert (table.rows, table.as_of) == (2, 1)
    assert "txid 2 is being committed" in table.notes[0]
    top = inspect.top("words", "word_count", 5, settings)
    assert keyed(top) == {"a": (4, None, None), "b": (2, None, 1)}
    assert [row.key["word"] for row in top.rows] == ["a", "b"], "in the order of what is shown"
    assert keyed(inspect.get("words", "word_count", ["a"], settings)) == {"a": (4, None, None)}
    assert inspect.get("words", "word_count", ["c"], settings).rows == (), "not there as of txid 1"
    assert "as of txid 1" in top.notes[0]


def test_a_whole_table_is_as_of_the_last_committed_batch_with_all_its_columns(make_rig: Any) -> None:
    rig = make_rig()
    rig.commit(1, {"a": 4, "b": 2})
    rig.commit(2, {"b": 3})
    with rig.database.read_state("words") as reading:
        first, *parts = reading.whole("word_count")
    assert (first.num_rows, first.schema.names) == (0, ["word", "n", "prev_n", "txid"])
    rows = sorted(pa.concat_tables(parts).to_pylist(), key=lambda row: row["word"])
    stored = sorted(read_rows(rig.url, "word_count"), key=lambda row: row["word"])
    assert rows == [dict(row) for row in stored]
    begin(rig, 3, {"a": 10, "c": 1})
    with rig.database.read_state("words") as reading:
        (found,) = [part for part in reading.whole("word_count") if part.num_rows]
    assert {row["word"]: (row["n"], row["prev_n"], row["txid"]) for row in found.to_pylist()} == {
        "a": (4, None, None), "b": (5, 2, 2),
    }  # fmt: skip


def test_while_executors_commit_a_transactional_table_says_that_it_does_not_know(make_rig: Any) -> None:
    rig = make_rig(TRANSACTIONAL)
    rig.commit(1, {"a": 4})
    begin(rig, 2, {"a": 10})
    found = inspect.top("words", "word_count", 5, settings_of(rig))
    assert keyed(found) == {"a": (14, None, 2)}
    assert found.as_of == 1
    assert "what they were before is not kept" in found.notes[0]


def test_a_replay_from_executors_takes_the_committed_batch_back(make_rig: Any) -> None:
    """The ledger's row says `committing` again, and the first attempt's rows read as before the batch."""
    rig = make_rig()
    rig.commit(1, {"a": 4})
    rig.commit(2, {"a": 1, "b": 1})
    begin(rig, 2, {"a": 10})
    found = inspect.top("words", "word_count", 5, settings_of(rig))
    assert (keyed(found), found.as_of) == ({"a": (4, None, None)}, 1)


# --- diff ------------------------------------------------------------------------------------------


def test_a_diff_has_created_and_changed_rows(make_rig: Any) -> None:
    rig = make_rig()
    rig.commit(1, {"a": 4, "b": 2})
    rig.commit(2, {"a": 3, "c": 1})
    found = inspect.diff("words", "word_count", 2, settings_of(rig))
    assert found.created == (inspect.RowChange({"word": "c"}, None, {"n": 1}),)
    assert found.changed == (inspect.RowChange({"word": "a"}, {"n": 4}, {"n": 7}),)
    assert (found.status, found.carrying_count, found.overwritten, found.notes) == ("committed", 2, 0, ())


def test_a_diff_says_what_is_not_known_any_more(make_rig: Any) -> None:
    rig = make_rig()
    rig.commit(1, {"a": 4, "b": 2, "c": 1})
    rig.commit(2, {"a": 3, "c": 1})
    found = inspect.diff("words", "word_count", 1, settings_of(rig))
    assert [change.key["word"] for change in found.created] == ["b"]
    assert found.overwritten == 2
    assert "2 more that txid 1 wrote" in found.notes[0]


def test_rows_of_a_failed_attempt_are_no_change(make_rig: Any) -> None:
    """When they are restored, they keep this txid."""
    rig = make_rig()
    rig.commit(1, {"a": 4, "b": 2})
    rig.commit(2, {"a": 3, "b": 3})
    rig.commit(2, {"a": 5})
    found = inspect.diff("words", "word_count", 2, settings_of(rig))
    assert [change.key["word"] for change in found.changed] == ["a"]
    assert (found.unchanged, found.carrying_count, found.overwritten) == (1, 2, 0)


def test_a_transactional_diff_knows_which_rows_alone(make_rig: Any) -> None:
    rig = make_rig(TRANSACTIONAL)
    rig.commit(1, {"a": 4, "b": 2})
    rig.commit(2, {"a": 3})
    found = inspect.diff("words", "word_count", 2, settings_of(rig))
    assert [(row.key["word"], row.value["n"]) for row in found.carrying] == [("a", 7)]
    assert (found.created, found.changed) == ((), ())
    assert "keeps no earlier values" in found.notes[0]


def test_a_diff_can_be_limited(make_rig: Any) -> None:
    rig = make_rig()
    rig.commit(1, {"a": 4, "b": 2, "c": 1})
    found = inspect.diff("words", "word_count", 1, settings_of(rig), limit=2)
    assert (len(found.created), found.carrying_count) == (2, 3)
    assert "1 more carry txid 1" in found.notes[0]


def test_a_diff_of_a_batch_that_is_being_committed(make_rig: Any) -> None:
    rig = make_rig()
    rig.commit(1, {"a": 4})
    begin(rig, 2, {"a": 10})
    found = inspect.diff("words", "word_count", 2, settings_of(rig))
    assert (found.status, found.overwritten) == ("committing", None)
    assert found.changed == (inspect.RowChange({"word": "a"}, {"n": 4}, {"n": 14}),)
    assert "written so far" in found.notes[0]


def test_unknown_txids_and_tables_are_told_with_those_that_are_there(make_rig: Any) -> None:
    rig = make_rig()
    rig.commit(1, {"a": 4})
    rig.commit(2, {"a": 4})
    settings = settings_of(rig)
    with pytest.raises(inspect.UnknownTxidError, match="no txid 9; it has txid 1 to 2"):
        inspect.diff("words", "word_count", 9, settings)
    with pytest.raises(StateTableError, match="no state table 'other'; it has word_count in sqlite"):
        inspect.get("words", "other", ["a"], settings)
    with pytest.raises(inspect.UnknownTopologyError, match="no topology 'nobody'"):
        inspect.states("nobody", settings)
    plain = make_rig(PLAIN, table="plain")
    with pytest.raises(StateTableError, match="do not remember which batch"):
        inspect.diff("words", "plain", 1, settings_of(plain))


# --- keys ------------------------------------------------------------------------------------------


@each(
    ("kind", "text", "value"),
    [
        ("string", " as it is ", " as it is "),
        ("string", "", ""),
        ("bigint", "-7", -7),
        ("tinyint", "+7", 7),
        ("boolean", "TRUE", True),
        ("boolean", "no", False),
        ("decimal(9,2)", "1.50", Decimal("1.50")),
        ("date", "2026-01-31", date(2026, 1, 31)),
        ("timestamp", "2026-01-31T12:00:00+01:00", datetime(2026, 1, 31, 11, tzinfo=UTC)),
        ("timestamp_ntz", "2026-01-31T12:00:00.5", datetime(2026, 1, 31, 12, 0, 0, 500_000)),
        ("binary", "0x00ff", b"\x00\xff"),
    ],
)
def test_a_key_is_read_by_its_type(kind: str, text: str, value: Any) -> None:
    assert parse_key("t", parse_schema(f"k {kind}"), [text]) == [value]


@each(
    ("kind", "text", "words"),
    [
        ("bigint", "seven", "a whole number"),
        ("tinyint", "128", "from -128 to 127"),
        ("boolean", "perhaps", "true or false"),
        ("decimal(4,2)", "1.505", "at most 2 digits after the point"),
        ("decimal(4,2)", "100000", "within its range"),
        ("decimal(4,2)", "NaN", "a decimal number"),
        ("date", "31.1.2026", "2026-01-31"),
        ("timestamp", "2026-01-31T12:00:00", "with its offset"),
        ("timestamp_ntz", "2026-01-31T12:00:00Z", "without an offset"),
        ("binary", "0xg0", "hexadecimal"),
    ],
)
def test_a_key_that_is_not_of_its_type_is_named(kind: str, text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_key("totals", parse_schema(f"k {kind}"), [text])
    message = str(caught.value)
    assert words in message
    assert all(word in message for word in ("'k'", "'totals'", kind, repr(text)))


def test_a_key_needs_one_value_per_column() -> None:
    with pytest.raises(UsageError, match="day date, shop string: give 2 values, one per column, not 1"):
        parse_key("totals", parse_schema("day date, shop string"), ["2026-01-31"])


def test_rows_are_found_by_keys_of_all_types(make_rig: Any) -> None:
    key = "s string, i int, b boolean, d date, t timestamp, x binary"
    rig = make_rig(key=key)
    moment = datetime(2026, 1, 31, 11, 0, 0, 250_000, tzinfo=UTC)
    whole = ("\U0001f600 ", -5, True, date(2026, 1, 31), moment, b"\x00\xff")
    rig.commit(1, {whole: 3})
    texts = ["\U0001f600 ", "-5", "true", "2026-01-31", "2026-01-31T12:00:00.25+01:00", "00ff"]
    found = inspect.get("words", "word_count", texts, settings_of(rig), parse=True)
    (row,) = found.rows
    assert tuple(row.key.values()) == whole
    assert row.value == {"n": 3}


# --- several databases -----------------------------------------------------------------------------


@pytest.fixture
def two(make_rig: Any, tmp_path: Path) -> tuple[Rig, Rig]:
    """One topology with a table in each of two databases, which name each other."""
    first = make_rig()
    second = make_rig(url=f"sqlite:///{tmp_path / 'second.db'}", table="totals")
    for rig in (first, second):
        name_databases(rig, [first.url, second.url])
        rig.commit(1, {"a": 1})
    return first, second


def test_the_other_databases_are_found(two: tuple[Rig, Rig]) -> None:
    first, second = two
    for rig in two:
        assert [t.table for t in inspect.states("words", settings_of(rig))] == ["totals", "word_count"]
    assert keyed(inspect.get("words", "totals", ["a"], settings_of(first))) == {"a": (1, None, 1)}
    (batch,) = inspect.batches("words", settings_of(first))
    assert {entry.database for entry in batch.entries} == {first.url, second.url}
    assert (batch.status, batch.keys) == ("committed", 2)


def test_a_batch_that_one_database_has_not_is_partial(two: tuple[Rig, Rig]) -> None:
    first, _ = two
    first.commit(2, {"a": 1})
    assert [batch.status for batch in inspect.batches("words", settings_of(first))] == [
        "committed",
        "partial",
    ]
    (newest,) = inspect.batches("words", settings_of(first), last=1)
    assert (newest.txid, newest.status) == (2, "partial")


def test_a_database_that_cannot_be_opened_is_named(
    two: tuple[Rig, Rig], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first, _ = two
    hidden = "postgresql://me:***@10.0.0.1/other"
    name_databases(first, [first.url, hidden, f"sqlite:///{tmp_path}/gone.db"])
    with pytest.raises(ServiceUnavailableError, match="--state-database") as caught:
        inspect.states("words", settings_of(first))
    assert hidden in str(caught.value)
    assert main(["state", "list", "words", "--json", "--database", first.url]) == 0
    out, err = capsys.readouterr()
    assert [table["table"] for table in json.loads(out)] == ["word_count"]
    assert len(err.splitlines()) == 2
    assert "only its URL without the password is known" in err
    assert "gone.db was left out: there is no such file" in err


def test_several_readers_share_databases_that_are_open(
    two: tuple[Rig, Rig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = two
    name_databases(first, [first.url, second.url, f"sqlite:///{tmp_path}/gone.db"])
    asked: list[str] = []

    def opening(url: str, **options: Any) -> StateBackend:
        asked.append(url)
        return open_database(url, **options)

    monkeypatch.setattr("txstream.state.open_database", opening)
    with inspect.opened("words", settings_of(first)) as databases:
        for table in ("totals", "word_count"):
            assert inspect.top("words", table, 1, databases).rows
            assert inspect.diff("words", table, 1, databases).created
        missing: list[inspect.MissingDatabase] = []
        assert len(inspect.batches("words", databases, missing=missing)) == 1
        assert [one.database for one in missing] == [f"sqlite:///{tmp_path}/gone.db"]
        with pytest.raises(ServiceUnavailableError, match=r"gone\.db"):
            inspect.states("words", databases)
        with pytest.raises(UsageError, match="were opened for 'words'"):
            inspect.batches("others", databases)
    assert asked == [first.url, second.url]


def test_a_password_in_a_query_is_hidden_too(two: tuple[Rig, Rig]) -> None:
    first, _ = two
    name_databases(first, [first.url, "postgresql://db/other?password=***"])
    with open_databases(settings_of(first), "words") as databases:
        (missing,) = databases.missing
    assert missing.reason == "only its URL without the password is known"


def test_a_url_with_its_password_takes_the_place_of_the_one_without(
    two: tuple[Rig, Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    for rig in two:
        name_databases(rig, [first.url, "postgresql://me:***@db/other"])
    asked: list[str] = []

    def opening(url: str, **_: Any) -> StateBackend:
        asked.append(url)
        found: StateBackend = second.database if url.startswith("postgresql") else first.database
        return found

    monkeypatch.setattr("txstream.state.open_database", opening)
    settings = settings_of(first, state_databases=("postgresql://me:secret@db/other",))
    with open_databases(settings, "words") as databases:
        assert len(databases.opened) == 2
        assert not databases.missing
    assert asked.count("postgresql://me:secret@db/other") == 1
    assert "postgresql://me:***@db/other" not in asked


def test_one_table_name_in_two_databases_must_be_told_apart(make_rig: Any, tmp_path: Path) -> None:
    first, second = make_rig(), make_rig(url=f"sqlite:///{tmp_path / 'second.db'}")
    name_databases(first, [first.url, second.url])
    for rig, count in ((first, 1), (second, 5)):
        rig.commit(1, {"a": count})
    with pytest.raises(StateTableError, match="say which with --in"):
        inspect.get("words", "word_count", ["a"], settings_of(first))
    found = inspect.get("words", "word_count", ["a"], settings_of(first), database="second.db")
    assert keyed(found) == {"a": (5, None, 1)}


def test_a_store_that_cannot_be_read_by_commands_says_so() -> None:
    class Own(StateBackend):
        display_url = "own://"

    Own.__abstractmethods__ = frozenset()
    with pytest.raises(UsageError, match="Own does not implement read_state"):
        Own().read_state("words")  # type: ignore[abstract]


# --- the command line ------------------------------------------------------------------------------


def test_state_get_as_a_person_reads_it(make_rig: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rig = make_rig(key="day date, word string")
    rig.commit(1, {(date(2026, 1, 31), "a"): 4})
    where = ["--database", rig.url]
    assert main(["state", "get", "words", "word_count", "2026-01-31", "a", *where]) == 0
    out, err = capsys.readouterr()
    assert out.split() == ["day", "word", "n", "prev_n", "txid", *out.split()[5:]]
    assert "2026-01-31" in out
    assert "as of txid 1" in err
    assert main(["state", "get", "words", "word_count", "2026-01-31", "z", *where]) == 1
    assert "no row of key 2026-01-31, z" in capsys.readouterr().err
    assert main(["state", "get", "words", "word_count", "31.1.", "a", *where]) == 2
    assert "'day'" in capsys.readouterr().err


def test_a_key_with_a_dash_comes_after_two(make_rig: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rig = make_rig(key="k bigint")
    rig.commit(1, {-7: 4})
    assert main(["state", "get", "words", "word_count", "--json", "--database", rig.url, "--", "-7"]) == 0
    assert json.loads(capsys.readouterr().out)["row"]["value"] == {"n": 4}


def test_state_diff_and_json(make_rig: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rig = make_rig()
    rig.commit(1, {"a": 4, "b": 1})
    rig.commit(2, {"a": 3, "c": 1})
    where = ["--database", rig.url]
    assert main(["state", "diff", "words", "word_count", "--txid", "2", *where]) == 0
    out = capsys.readouterr().out
    assert "created 1 row of word_count, changed 1" in out
    assert main(["state", "diff", "words", "word_count", "--txid", "2", "--json", *where]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["changed"] == [{"key": {"word": "a"}, "before": {"n": 4}, "after": {"n": 7}}]
    assert main(["state", "get", "words", "word_count", "b", "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out)["row"] == {
        "key": {"word": "b"},
        "value": {"n": 1},
        "prev": None,
        "txid": 1,
    }
    assert main(["state", "top", "words", "word_count", "-n", "1", "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out) == [{"word": "a", "n": 7, "prev_n": 4, "txid": 2}]
    assert main(["state", "diff", "words", "word_count", "--txid", "3", *where]) == 1
    assert "it has txid 1 to 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    "key",
    [
        ("-a", date(2026, 1, 31), -7, True, b"\x00\xff"),
        ("", date(1, 1, 1), 0, False, b""),
        ("a=b, 'c'\n", date(9999, 12, 31), 7, True, b"\x01"),
    ],
)
def test_a_key_of_several_columns(
    make_rig: Any, capsys: pytest.CaptureFixture[str], key: tuple[Any, ...]
) -> None:
    """One argument per column, in order. Values that begin with a dash come after `--`."""
    rig = make_rig(key="s string, d date, i int, yes boolean, b binary")
    rig.commit(1, {key: 5, ("other", date(2026, 1, 31), 1, True, b""): 1})
    text, day, number, yes, raw = key
    typed = [text, day.isoformat(), str(number), str(yes).lower(), raw.hex()]
    where = ["--json", "--database", rig.url]
    assert main(["state", "get", "words", "word_count", *where, "--", *typed]) == 0
    row = json.loads(capsys.readouterr().out)["row"]
    assert row["key"] == {"s": text, "d": typed[1], "i": number, "yes": yes, "b": typed[4]}
    assert row["value"] == {"n": 5}
    assert main(["state", "get", "words", "word_count", *where, "--", *typed[:-1]]) == 2
    assert "give 5 values, one per column, not 4" in capsys.readouterr().err
    named = dict(zip(("b", "yes", "i", "d", "s"), reversed(key), strict=True))
    assert inspect.get("words", "word_count", named, settings_of(rig)).rows[0].value == {"n": 5}


# --- batches ---------------------------------------------------------------------------------------


def test_a_batch_in_full(make_rig: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rig = make_rig()
    under = rig.next(1)
    metas = {
        "partitions": {
            "lines/0": {"start": 3, "end": 7},
            "lines/1": {"start": 9, "end": 12, "skipped_from": 5},
        },
        "carried": {"lines/2": {"start": 8, "end": 8, "skipped_from": 2}, "lines/4": {"start": 1, "end": 1}},
        "unavailable": {"lines/3": "it has no leader"},
    }
    details = {
        "path": "driver",
        "timings": {"job": 0.25, "commit": 0.004, "read": 0.125},
        "attempts": [
            {"attempt": (1 << 32) + 1, "error": "a bolt failed", "failed_at": "2026-01-02T03:04:05+00:00"},
            {
                "attempt": (1 << 32) + 2,
                "error": "no broker",
                "failed_at": "2026-01-02T03:04:06+00:00",
                "ranges": {"lines/3": {"start": 0, "end": 5}, "lines/0": {"start": 3, "end": 7}},
                "left_out": ["lines/10", "lines/4"],
                "more": 2,
            },
            {"attempt": (1 << 32) + 3, "error": "once more", "failed_at": "", "same": True},
        ],
    }
    commit = Commit(
        under, metas, {"word_count": rig.table_of({"a": 1})}, 7, PLANNED, PROCESSED, details=details
    )
    rig.states.commit(commit)
    found = inspect.batch("words", 1, settings_of(rig))
    assert [(one.partition, one.start, one.end, one.records) for one in found.ranges] == [
        ("lines/0", 3, 7, 4),
        ("lines/1", 9, 12, 3),
    ]
    assert found.ranges[1].skipped_from == 5
    assert [(one.partition, one.skipped_from, one.start) for one in found.skipped] == [("lines/2", 2, 8)]
    assert found.unavailable == {"lines/3": "it has no leader"}
    assert (found.path, found.timings) == ("driver", {"job": 0.25, "commit": 0.004, "read": 0.125})
    failed, other, same = found.failed_attempts
    assert failed.ranges is None
    assert [(one.partition, one.end) for one in other.ranges or ()] == [("lines/0", 7), ("lines/3", 5)]
    assert (other.left_out, other.more) == (("lines/4", "lines/10"), 2)
    assert (same.ranges, same.left_out) == (found.ranges, ("lines/3",))
    assert (failed.attempt, failed.error) == ((1 << 32) + 1, "a bolt failed")
    assert failed.failed_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert main(["show", "words", "1", "--database", rig.url]) == 0
    out = capsys.readouterr().out
    for words in (
        *(
            "txid 1, committed",
            "job 0.250 s",
            "commit 0.004 s",
            "read 0.125 s, all Spark tasks together",
            "lines/3 was unavailable: it has no leader",
        ),
        *("attempt 1.1 failed at", "a bolt failed", "skipped 5 to 9: lost", "lines/2 skipped 2 to 8: lost"),
        "it held lines/0 3-7, lines/3 0-5, without lines/4, lines/10 (2 more are not recorded)\n",
        "attempt 1.3 failed: once more\n  it held the same ranges\n",
    ):
        assert words in out
    assert main(["show", "words", "1", "--json", "--database", rig.url]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["partitions"]["lines/0"] == {"start": 3, "end": 7}
    assert document["ranges"][0]["records"] == 4
    assert document["failed_attempts"][0]["error"] == "a bolt failed"
    assert document["failed_attempts"][0]["ranges"] is None
    assert document["failed_attempts"][1]["ranges"]["lines/3"] == {"start": 0, "end": 5}
    assert document["failed_attempts"][1]["left_out"] == ["lines/4", "lines/10"]


def test_a_batch_says_which_later_ones_took_up_what_it_left_out(
    make_rig: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Partition 1 comes in two parts, as much as the failed attempt held; 2 comes next; 3 is still away."""
    rig = make_rig()
    held = {"lines/1": {"start": 5, "end": 9}, "lines/0": {"start": 0, "end": 4}}
    failed = {"attempt": (1 << 32) + 1, "error": "no broker", "failed_at": "", "ranges": held}
    away = dict.fromkeys(("lines/1", "lines/2", "lines/3"), "no broker")
    read = [
        {"lines/0": {"start": 0, "end": 4}},
        {"lines/0": {"start": 4, "end": 8}, "lines/1": {"start": 5, "end": 8}},
        {"lines/0": {"start": 8, "end": 9}},
        {"lines/1": {"start": 8, "end": 12}, "lines/2": {"start": 1, "end": 2}},
        {"lines/1": {"start": 12, "end": 14}, "lines/2": {"start": 2, "end": 4}},
    ]
    for txid, partitions in enumerate(read, 1):
        first = txid == 1
        metas = {"partitions": partitions, **({"unavailable": away} if first else {})}
        details = {"attempts": [failed]} if first else {}
        deltas = {"word_count": rig.table_of({"a": 1})}
        rig.states.commit(Commit(rig.next(txid), metas, deltas, 1, PLANNED, PROCESSED, details=details))
    found = inspect.batch("words", 1, settings_of(rig))
    assert found.taken_up == {"lines/1": (2, 4), "lines/2": (4,), "lines/3": ()}
    assert inspect.batch("words", 2, settings_of(rig)).taken_up == {}
    assert main(["show", "words", "1", "--database", rig.url]) == 0
    assert (
        "lines/1, lines/2, lines/3 were unavailable: no broker\n"
        "  lines/3: no later batch has taken it up yet\n"
        "  lines/1: taken up by txid 2, 4\n"
        "  lines/2: taken up by txid 4\n"
    ) in capsys.readouterr().out
    assert main(["show", "words", "1", "--json", "--database", rig.url]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["taken_up"] == {"lines/1": [2, 4], "lines/2": [4], "lines/3": []}


def test_a_batch_of_an_older_txstream_knows_its_last_error_alone(make_rig: Any) -> None:
    rig = make_rig()
    rig.commit(1, {"a": 1}, error="a bolt failed")
    found = inspect.batch("words", 1, settings_of(rig))
    assert (found.path, found.timings) == (None, {})
    assert [(one.attempt, one.error) for one in found.failed_attempts] == [(None, "a bolt failed")]


def test_a_txid_that_the_ledger_has_not(make_rig: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rig = make_rig()
    assert main(["show", "words", "1", "--database", rig.url]) == 1
    assert "no txid 1; it has none yet" in capsys.readouterr().err
    rig.commit(1, {"a": 1})
    assert main(["show", "words", "7", "--database", rig.url]) == 1
    assert "no txid 7; it has txid 1 to 1" in capsys.readouterr().err


def test_answers_are_of_one_moment(make_rig: Any) -> None:
    """A batch that is committed while a table is being read is in no part of the answer."""
    rig = make_rig()
    rig.commit(1, {"a": 4})
    with rig.database.read_state("words") as reading:
        before = (reading.as_of, reading.count("word_count"))
        rig.commit(2, {"a": 3, "b": 1})
        row = reading.find("word_count", ["a"])
        assert (reading.as_of, reading.count("word_count")) == before == (Txid(1), 1)
        assert row is not None
        assert row.value == {"n": 4}
        assert reading.count_written_by("word_count", 2) == 0


def test_every_public_name_of_the_package_loads() -> None:
    assert set(inspect.__all__) == set(inspect._HOME_OF)
    for name in inspect.__all__:
        assert getattr(inspect, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'rows'"):
        inspect.rows  # noqa: B018


# --- deleting --------------------------------------------------------------------------------------


def test_a_topology_is_not_deleted_by_half_unless_told_so(
    two: tuple[Rig, Rig], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    for rig in two:
        name_databases(rig, [first.url, second.url, "postgresql://me:***@10.0.0.1/other"])
    zookeeper = MemoryZooKeeper()
    zookeeper.run_topology("words", driver=False, uuid=first.uuid)
    monkeypatch.setattr(delete_command, "open_zookeeper", zookeeper.opened)
    where = ["--database", first.url, "--zookeeper", "127.0.0.1:1", "--drop-state"]
    assert main(["delete", "words", *where]) == 1
    err = capsys.readouterr().err
    assert "postgresql://me:***@10.0.0.1/other" in err
    assert "--state-database" in err
    assert "--ignore-missing" in err
    assert zookeeper.topologies() == ["words"]
    assert main(["delete", "words", *where, "--ignore-missing", "--yes", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["dropped_tables"] == ["word_count", "totals"]
    assert "was left out" in err
    assert zookeeper.topologies() == []
    for rig in two:
        assert rig.database.read_fence("words") is None


def test_a_database_of_an_older_revision_names_the_command(two: tuple[Rig, Rig]) -> None:
    first, second = two
    engine = sa.create_engine(second.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE txstream_alembic_version SET version_num = '0002'")
        connection.exec_driver_sql("ALTER TABLE txstream_fence DROP COLUMN identity")
    engine.dispose()
    with open_databases(settings_of(first), "words") as databases:
        (missing,) = databases.missing
    assert "revision 0002" in missing.reason
    assert missing.remedy.startswith(f"type `txstream db upgrade --database {second.url}`")


def test_decimals_are_in_the_order_of_their_values(make_rig: Any) -> None:
    """SQLite stores them as text."""
    rig = make_rig(key="k decimal(9,2)", value="n decimal(9,2)")
    rig.commit(1, {Decimal("1.50"): Decimal("9.00"), Decimal("2.00"): Decimal("10.00")})
    rig.commit(2, {Decimal("1.50"): Decimal("0.50"), Decimal("3.00"): Decimal("-1.00")})
    begin(rig, 3, {Decimal("1.50"): Decimal("100.00")})
    rows = inspect.top("words", "word_count", 5, settings_of(rig)).rows
    assert [row.value["n"] for row in rows] == [Decimal("10.00"), Decimal("9.50"), Decimal("-1.00")]
    (row,) = inspect.get("words", "word_count", ["1.5"], settings_of(rig), parse=True).rows
    assert (row.key, row.value) == ({"k": Decimal("1.50")}, {"n": Decimal("9.50")})
