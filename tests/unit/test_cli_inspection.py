"""How stored batches, metas and drivers are shown."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from support.lists import each

from txstream.cli.context import Cli
from txstream.cli.databases import existing_database, open_zookeeper
from txstream.cli.inspection import batch_document, plain_value, shown_attempt, shown_ranges
from txstream.cli.state import _print_diff, _print_rows
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import UsageError
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid, attempt_id
from txstream.core.wording import shown
from txstream.inspect.plain_metas import PlainCodec, positions
from txstream.inspect.records import RowChange, StateRow, TableDiff
from txstream.settings import Settings
from txstream.state import BatchRecord

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
METAS = {
    "partitions": {
        "lines/0": {"start": 3, "end": 7, "topic_id": "abc", "skipped_from": None},
        "lines/1": {"start": 9, "end": 12, "topic_id": "abc", "skipped_from": 5},
    },
    "carried": {"lines/2": {"start": 4, "end": 4, "topic_id": "abc"}},
    "unavailable": {"lines/3": "it has no leader"},
}
RECORD = BatchRecord(
    topology="words",
    uuid="0",
    txid=Txid(4),
    attempt=attempt_id(2, 7),
    semantics=Semantics.OPAQUE,
    status="committed",
    metas=METAS,
    tuples=7,
    keys=5,
    planned_at=NOON,
    processed_at=NOON,
    committed_at=NOON,
    error=None,
)


def test_a_batch_for_scripts_has_start_and_end_alone() -> None:
    document = batch_document(RECORD)
    assert document["partitions"] == {"lines/0": {"start": 3, "end": 7}, "lines/1": {"start": 9, "end": 12}}
    assert (document["txid"], document["attempt"], document["epoch"]) == (4, (2 << 32) + 7, 2)
    assert (document["status"], document["tuples"]) == ("committed", 7)
    assert document["unavailable"] == {"lines/3": "it has no leader"}
    assert document["skipped"] == {"lines/1": {"from": 5, "to": 9}}
    assert document["committed_at"] == "2026-01-02T12:00:00+00:00"


def test_other_metas_are_given_as_they_are() -> None:
    record = replace(RECORD, metas={"partitions": {"file": {"line": 4}}}, committed_at=None)
    document = batch_document(record)
    assert document["partitions"] == {"file": {"line": 4}}
    assert document["committed_at"] is None
    assert "skipped" not in document


def test_ranges_for_people() -> None:
    assert shown_ranges(METAS) == "lines/0 3-7, lines/1 9-12, lines/3 unavailable"
    many = {"partitions": {f"t/{n}": {"start": 0, "end": 1} for n in range(9)}}
    assert shown_ranges(many).endswith("and 5 more")
    assert shown_ranges({"partitions": {"t/10": {}, "t/9": {}}, "unavailable": {"t/11": "", "t/2": ""}}) == (
        "t/9, t/10, t/2 unavailable, t/11 unavailable"
    )
    assert shown_attempt(RECORD.attempt) == "2.7"


def test_plain_metas_are_what_was_stored_and_positions_their_ends() -> None:
    codec = PlainCodec()
    decoded = codec.decode(METAS, "a test")
    assert codec.encode(decoded) == METAS
    assert positions(decoded) == {"lines/0": 7, "lines/1": 12, "lines/2": 4}
    assert positions(BatchMetas({"file": {"line": 4}})) == {"file": {"line": 4}}


@each(
    ("value", "expected"),
    [(None, "-"), (True, "yes"), (1234567, "1,234,567"), (1.5, "1.5"), ("x", "x")],
)
def test_values_for_people(value: object, expected: str) -> None:
    assert shown(value) == expected


def test_values_for_scripts() -> None:
    assert plain_value(b"\x00\xff") == "00ff"
    assert plain_value(Decimal("1.50")) == "1.50"
    assert plain_value(NOON) == "2026-01-02T12:00:00+00:00"
    assert plain_value(3) == 3


def test_numbers_of_every_type_are_aligned_right_with_separators(capsys: pytest.CaptureFixture[str]) -> None:
    """So are keys and previous values. Text and booleans are not numbers."""
    wide = {"total": Decimal("-1234567.50"), "mean": 1234.5, "name": "anna", "open": True}
    narrow = {"total": Decimal("1.50"), "mean": None, "name": "a-longer-name", "open": False}
    keys = [{"shop": 1000, "word": "a"}, {"shop": 7, "word": "bcd"}]
    rows = [StateRow(keys[0], wide), StateRow(keys[1], narrow)]
    _print_rows(Cli(), rows, Semantics.NON_TRANSACTIONAL)
    assert capsys.readouterr().out.splitlines()[3:5] == [
        " 1,000   a      -1,234,567.50   1,234.5   anna            yes",
        "     7   bcd             1.50         -   a-longer-name   no",
    ]
    created, changed = RowChange(keys[0], None, wide), RowChange(keys[1], wide, narrow)
    diff = ("db", "t", Semantics.OPAQUE, Txid(3), "committed", (created,), (changed,), 0, (), 2, 0)
    _print_diff(Cli(), TableDiff(*diff))
    _, *cells = capsys.readouterr().out.splitlines()[3:5]
    assert cells == [
        " changed       7   bcd    -1,234,567.50            1.50"
        "       1,234.5         -   anna          a-longer-name   yes           no"
    ]


def test_a_table_that_is_piped_is_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    Cli().print_table(["name", ">n"], [["x" * 300, 1], ["[bold]no markup[/bold]", 1000]])
    out = capsys.readouterr().out
    assert "x" * 300 in out
    assert "[bold]no markup[/bold]" in out
    assert "1,000" in out


def test_looking_does_not_make_a_database(tmp_path: Path) -> None:
    with existing_database(Settings(data_dir=tmp_path)) as database:
        assert database is None
    with existing_database(Settings(database=f"sqlite:///{tmp_path}/other.db?timeout=3")) as database:
        assert database is None
    assert list(tmp_path.iterdir()) == []


def test_zookeeper_needs_an_address() -> None:
    with pytest.raises(UsageError, match="txstream up"), open_zookeeper(Settings()):
        raise AssertionError("it has no address")
