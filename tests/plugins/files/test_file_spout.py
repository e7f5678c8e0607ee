"""`FileSpout` over text files: what is planned, what is read, and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from support.inmemory import CONTEXT, attempt
from support.lists import each

from txstream.api.schema import format_schema
from txstream.api.spouts import Unavailable
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import (
    CorruptStateError,
    DataLostError,
    DecodeError,
    PartitionUnavailableError,
    SchemaError,
    TopologyError,
    UsageError,
)
from txstream.plugins.files import FileRange, FileSpout, lines as files_lines
from txstream.plugins.files.coordinator import FileCoordinator

Metas = dict[str, FileRange]


def plan(source: FileSpout, last: Metas | None = None, limit: int = 1000) -> Metas:
    """Make a plan, in which every file must be readable."""
    metas: Metas = {}
    for name, meta in source.coordinator(CONTEXT).plan(last or {}, limit).items():
        assert isinstance(meta, FileRange), f"{name}: {meta}"
        metas[name] = meta
    return metas


def rows(source: FileSpout, name: str, meta: FileRange) -> list[dict[str, Any]]:
    emitted = []
    for batch in pickle.loads(pickle.dumps(source)).emitter(CONTEXT).emit(attempt(1), name, meta):
        assert batch.schema.equals(source.output)
        assert batch.num_rows
        emitted += batch.to_pylist()
    return emitted


def values(source: FileSpout, name: str, meta: FileRange) -> list[str]:
    return [row["value"] for row in rows(source, name, meta)]


def everything(source: FileSpout, limit: int = 1000) -> dict[str, list[str]]:
    """Read all lines, batch by batch, until nothing is left."""
    lines: dict[str, list[str]] = {}
    last: Metas = {}
    while True:
        metas = plan(source, last, limit)
        if not metas:
            return lines
        assert 0 < sum(meta.records for meta in metas.values()) <= limit
        for name, meta in metas.items():
            assert meta.start == (last[name].end if name in last else 0)
            found = values(source, name, meta)
            assert len(found) == meta.records
            lines.setdefault(name, []).extend(found)
        last |= metas


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "logs"
    made.mkdir()
    return made


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes opening a file fail as on a broken disk. (Permissions do not stop a test that runs as root.)"""
    broken: set[str] = set()
    real = os.open

    def opening(path: Any, *arguments: Any, **options: Any) -> int:
        if os.fspath(path) in broken:
            raise OSError(5, "Input/output error", os.fspath(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", opening)
    return lambda path: broken.add(os.fspath(path))


# --- lines --------------------------------------------------------------------------------------------------


def test_lines_as_they_are_and_only_whole_ones(folder: Path) -> None:
    (folder / "a.log").write_bytes("one\n\n  größe 🙂 \r\nlast\r\r\nunfinished".encode())
    source = FileSpout(folder)
    (meta,) = plan(source).values()
    assert values(source, "a.log", meta) == ["one", "", "  größe 🙂 ", "last\r"]
    assert (meta.start, meta.records) == (0, 4)
    assert plan(source, {"a.log": meta}) == {}, "the last line has no newline yet"
    with (folder / "a.log").open("ab") as file:
        file.write(b" line\nmore")
    (meta,) = plan(source, {"a.log": meta}).values()
    assert values(source, "a.log", meta) == ["unfinished line"]


def test_every_file_is_a_partition(folder: Path) -> None:
    for name in ("a", "b.log", ".hidden", "_temporary", "with space", "größe.txt"):
        (folder / name).write_text(f"{name}\n", encoding="utf-8")
    (folder / "folder").mkdir()
    (folder / "folder" / "deep").write_text("deep\n")
    (folder / "empty").touch()
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(folder / "b.log")
    (folder / "dangling").symlink_to(folder / "nowhere")
    assert everything(FileSpout(folder)) == {
        "a": ["a"],
        "b.log": ["b.log"],
        "with space": ["with space"],
        "größe.txt": ["größe.txt"],
        "link": ["b.log"],
    }


def test_patterns_and_folders(folder: Path) -> None:
    for name in ("a.log", "b.txt", "2026/c.log", "2026/11/d.log", "2026/.git/e.log", "_old/f.log"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x\n")
    (folder / "loop").symlink_to(folder)
    assert everything(FileSpout(folder, pattern="*.log")).keys() == {"a.log"}
    deep = everything(FileSpout(folder, pattern="*.log", recursive=True))
    assert deep.keys() == {"a.log", "2026/c.log", "2026/11/d.log"}


def test_origin(folder: Path) -> None:
    (folder / "a").write_bytes(b"one\r\ntwo\n\nfour\n")
    source = FileSpout(folder, with_origin=True)
    assert format_schema(source.output) == "value string, path string, offset bigint"
    (meta,) = plan(source, limit=2).values()
    (rest,) = plan(source, {"a": meta}).values()
    assert rows(source, "a", meta) + rows(source, "a", rest) == [
        {"value": "one", "path": "a", "offset": 0},
        {"value": "two", "path": "a", "offset": 5},
        {"value": "", "path": "a", "offset": 9},
        {"value": "four", "path": "a", "offset": 10},
    ]


def test_a_byte_order_mark_is_passed_over_at_the_beginning_only(folder: Path) -> None:
    (folder / "a").write_bytes(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n")
    assert everything(FileSpout(folder), limit=1) == {"a": ["one", "\ufefftwo"]}


def test_an_unfinished_character_is_part_of_an_unfinished_line(folder: Path) -> None:
    (folder / "a").write_bytes(b"one\n\xf0\x9f")
    assert everything(FileSpout(folder)) == {"a": ["one"]}


@given(
    contents=st.lists(
        st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=12),
        max_size=30,
    ),
    limit=st.integers(1, 40),
    scan=st.integers(1, 20),
    read=st.integers(1, 20),
    budget=st.integers(1, 60),
)
@settings(max_examples=60, deadline=None)
def test_any_lines_with_any_limits(
    tmp_path_factory: pytest.TempPathFactory,
    contents: list[str],
    limit: int,
    scan: int,
    read: int,
    budget: int,
) -> None:
    """However the lines are divided among reads and batches, each comes once, in order."""
    folder = tmp_path_factory.mktemp("logs")
    expected: dict[str, list[str]] = {}
    for number, line in enumerate(contents):
        expected.setdefault(f"f{number % 3}", []).append(line.removeprefix("\ufeff"))
    for name, lines in expected.items():
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_lines, "_SCAN_BYTES", scan)
        patch.setattr(files_lines, "_READ_BYTES", read)
        patch.setattr(files_lines, "_MARK_BYTES", scan)
        source = FileSpout(folder, max_batch_bytes=budget)
        assert everything(source, limit) == expected
        sizes = {name: (folder / name).stat().st_size for name in expected}
        assert source.coordinator(CONTEXT).targets() == sizes


# --- what a batch takes -------------------------------------------------------------------------------------


def fill(folder: Path, **lines: int) -> None:
    for name, count in lines.items():
        (folder / name).write_text("".join(f"{name}{n}\n" for n in range(count)))


def test_a_small_file_does_not_starve_and_nothing_of_the_limit_is_wasted(folder: Path) -> None:
    fill(folder, a=1000, b=3, c=1000)
    taken = {name: meta.records for name, meta in plan(FileSpout(folder), limit=101).items()}
    assert taken["b"] == 3
    assert sum(taken.values()) == 101
    assert abs(taken["a"] - taken["c"]) <= 2


def test_with_more_files_than_records_all_take_turns(folder: Path) -> None:
    fill(folder, a=4, b=4, c=4, d=4)
    source = FileSpout(folder)
    last: Metas = {}
    order: list[str] = []
    for _ in range(4):
        metas = plan(source, last, 1)
        last |= metas
        order += metas
    assert sorted(order) == ["a", "b", "c", "d"]


def test_bounds_per_file_and_per_batch(folder: Path) -> None:
    fill(folder, a=100, b=100)
    capped = plan(FileSpout(folder, max_records_per_partition=7))
    assert {name: meta.records for name, meta in capped.items()} == {"a": 7, "b": 7}
    sized = plan(FileSpout(folder, max_batch_bytes=50))
    assert 30 <= sum(meta.end - meta.start for meta in sized.values()) <= 50


def test_a_line_longer_than_a_batch_is_a_batch_of_its_own(folder: Path) -> None:
    lines = ["short", "x" * 700_000, "short"]
    (folder / "a").write_text("".join(f"{line}\n" for line in lines))
    source = FileSpout(folder, max_batch_bytes=1000)
    assert everything(source) == {"a": lines}
    assert [meta.records for meta in plan(source).values()] == [1]


def test_a_line_longer_than_allowed_is_refused(folder: Path) -> None:
    (folder / "a").write_text("ok\n" + "x" * 2_000_000)
    source = FileSpout(folder, max_line_bytes=1_000_000)
    with pytest.raises(DecodeError, match="a, byte 3: a line is longer than 1000000 bytes"):
        plan(source)


def test_counting_ends_at_the_deadline_with_what_there_is(folder: Path) -> None:
    fill(folder, a=10, b=10, c=10)
    clock = iter(range(0, 1000, 2))
    coordinator = FileCoordinator(FileSpout(folder), clock=lambda: next(clock))
    assert len(coordinator.plan({}, 1000)) == 1


def test_waiting_for_files_costs_little(folder: Path) -> None:
    """Looking through a large directory may take long. The next look then waits in proportion."""
    now, look = [100.0], [0.0]

    def clock() -> float:
        now[0] += look[0] / 2
        return now[0]

    coordinator = FileCoordinator(FileSpout(folder), clock=clock)
    assert coordinator.is_ready()
    coordinator.plan({}, 10)
    assert coordinator.is_ready(), "a quick look need not be rare"
    look[0] = 0.1
    coordinator.plan({}, 10)
    look[0] = 0.0
    assert not coordinator.is_ready()
    now[0] += 7.5
    assert coordinator.is_ready()
    look[0] = 0.1
    fill(folder, a=1)
    coordinator.plan({}, 10)
    assert coordinator.is_ready(), "there was something, so there may be more"


# --- the end ------------------------------------------------------------------------------------------------


def test_targets(folder: Path) -> None:
    (folder / "a").write_bytes(b"one\ntwo\nunfin")
    (folder / "b").write_bytes(b"unfinished")
    (folder / "empty").touch()
    source = FileSpout(folder)
    coordinator = source.coordinator(CONTEXT)
    targets = coordinator.targets()
    assert targets == {"a": 8, "b": 0, "empty": 0}
    assert not coordinator.reached({}, targets)
    assert coordinator.lag_records({}, targets) is None
    first = plan(source, limit=1)
    assert not coordinator.reached(first, targets)
    both = plan(source)
    assert coordinator.reached(both, targets)
    assert coordinator.lag_records(both, targets) == 0


def test_metas_are_stored_as_json(folder: Path) -> None:
    fill(folder, a=3)
    codec = MetaCodec(FileSpout.meta_type)
    (meta,) = plan(FileSpout(folder)).values()
    assert codec.decode_meta(json.loads(json.dumps(codec.encode_meta(meta))), "here") == meta
    for wrong in ({"start": 4, "end": 3, "records": 0}, {"start": 0, "end": 3, "records": 4}):
        with pytest.raises(CorruptStateError):
            codec.decode_meta(wrong, "here")


# --- what must not happen to a file -------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5])


def rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"a0", b"A0"))


def put_another(path: Path) -> None:
    other = path.with_name(".other")
    other.write_text("other\n" * 100)
    other.rename(path)


DAMAGES = [(truncate, "only 5 bytes"), (rewrite, "no longer the same"), (put_another, "no longer the same")]


@pytest.mark.parametrize(("damage", "what"), DAMAGES)
def test_a_damaged_file_is_lost(folder: Path, damage: Callable[[Path], None], what: str) -> None:
    fill(folder, a=20)
    source = FileSpout(folder)
    coordinator = source.coordinator(CONTEXT)
    metas = plan(source, limit=10)
    assert coordinator.unreadable(metas) == {}
    damage(folder / "a")
    for act in (
        lambda: plan(source, metas),
        lambda: coordinator.plan(metas, 10),
        lambda: coordinator.unreadable(metas),
        lambda: rows(source, "a", metas["a"]),
    ):
        with pytest.raises(DataLostError, match=what):
            act()


def test_a_change_in_the_middle_of_a_range_is_noticed(folder: Path) -> None:
    """The fingerprint does not cover that part, but the checksum does."""
    (folder / "a").write_bytes(b"x" * 1500 + b"\n" + b"y" * 1500 + b"\n")
    source = FileSpout(folder)
    (meta,) = plan(source).values()
    (folder / "a").write_bytes(b"x" * 1499 + b"z\n" + b"y" * 1500 + b"\n")
    assert source.coordinator(CONTEXT).unreadable({"a": meta}) == {}
    with pytest.raises(DataLostError, match="no longer those that were planned"):
        rows(source, "a", meta)


def test_other_bytes_that_cannot_be_decoded_are_lost_rather_than_malformed(folder: Path) -> None:
    (folder / "a").write_bytes(b"x" * 1500 + b"\n" + b"y" * 1500 + b"\n")
    source = FileSpout(folder)
    (meta,) = plan(source).values()
    (folder / "a").write_bytes(b"x" * 1499 + b"\xff\n" + b"y" * 1500 + b"\n")
    with pytest.raises(DataLostError, match="no longer those that were planned"):
        rows(source, "a", meta)


def test_a_file_that_was_copied_anew_with_more_at_its_end_is_the_same(folder: Path) -> None:
    """rsync replaces the file; only its bytes count."""
    fill(folder, a=20)
    source = FileSpout(folder)
    metas = plan(source)
    copy = folder / ".copy"
    copy.write_bytes((folder / "a").read_bytes() + b"new\n")
    copy.rename(folder / "a")
    assert values(source, "a", plan(source, metas)["a"]) == ["new"]


def test_a_file_may_be_deleted_when_it_has_been_read_to_its_end(folder: Path) -> None:
    fill(folder, a=2, b=2)
    source = FileSpout(folder)
    metas = plan(source)
    (folder / "a").unlink()
    assert plan(source, metas) == {}
    fill(folder, b=3)
    assert plan(source, metas).keys() == {"b"}
    fill(folder, a=1)
    with pytest.raises(DataLostError, match="truncated or replaced"):
        plan(source, metas)


def test_a_file_deleted_before_its_end_is_lost(folder: Path) -> None:
    fill(folder, a=20)
    source = FileSpout(folder)
    metas = plan(source, limit=10)
    (folder / "a").unlink()
    with pytest.raises(DataLostError, match="it was deleted, and went on to"):
        plan(source, metas)
    with pytest.raises(DataLostError, match="it was deleted before its batch was committed"):
        source.coordinator(CONTEXT).unreadable(metas)
    with pytest.raises(DataLostError, match="it was deleted"):
        rows(source, "a", metas["a"])


def test_what_grew_after_the_last_plan_is_known_to_be_lost(folder: Path) -> None:
    """An opaque replay plans again from the earlier place. It must not skip what the failed attempt had."""
    fill(folder, a=2)
    source = FileSpout(folder)
    metas = plan(source)
    coordinator = source.coordinator(CONTEXT)
    fill(folder, a=5)
    assert coordinator.plan(metas, 10).keys() == {"a"}
    (folder / "a").unlink()
    with pytest.raises(DataLostError, match="it was deleted, and went on to"):
        coordinator.plan(metas, 10)


def test_a_file_that_the_pattern_no_longer_has_keeps_its_place(folder: Path) -> None:
    fill(folder, a=20)
    metas = plan(FileSpout(folder), limit=10)
    assert plan(FileSpout(folder, pattern="*.log"), metas) == {}


# --- outages ------------------------------------------------------------------------------------------------


def test_an_unreadable_file_is_left_out(folder: Path, failing: Callable[[Path], None]) -> None:
    fill(folder, a=3, b=3)
    source = FileSpout(folder)
    metas = plan(source)
    failing(folder / "a")
    coordinator = source.coordinator(CONTEXT)
    fill(folder, a=9, b=9)
    for last in ({}, metas):
        planned = coordinator.plan(last, 100)
        assert isinstance(planned["b"], FileRange)
        assert isinstance(planned["a"], Unavailable)
        assert "Input/output error" in planned["a"].reason
    assert coordinator.unreadable(metas).keys() == {"a"}
    with pytest.raises(PartitionUnavailableError, match=r"a ends now: .*Input/output error"):
        coordinator.targets()
    with pytest.raises(PartitionUnavailableError, match=r"a cannot be read: .*Input/output error"):
        rows(source, "a", metas["a"])


def test_a_file_that_cannot_be_looked_at_is_recorded(folder: Path) -> None:
    fill(folder, a=1)
    (folder / "loop").symlink_to("loop")
    planned = FileSpout(folder).coordinator(CONTEXT).plan({}, 10)
    assert isinstance(planned["a"], FileRange)
    assert isinstance(planned["loop"], Unavailable)
    assert "symbolic links" in planned["loop"].reason


def test_an_unreadable_folder_takes_only_its_files_along(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "down").mkdir()
    for name in ("top", "down/below"):
        (folder / name).write_text("x\ny\n")
    source = FileSpout(folder, recursive=True)
    last = plan(source, limit=2)
    assert last.keys() == {"top", "down/below"}
    real = os.scandir

    def scanning(path: Any) -> Any:
        if Path(path).name == "down":
            raise OSError(116, "Stale file handle")
        return real(path)

    monkeypatch.setattr(os, "scandir", scanning)
    coordinator = source.coordinator(CONTEXT)
    planned = coordinator.plan(last, 100)
    assert isinstance(planned["top"], FileRange)
    assert planned["down/below"] == planned["down"] == Unavailable("[Errno 116] Stale file handle")
    with pytest.raises(PartitionUnavailableError, match=r"down: .*Stale file handle"):
        coordinator.targets()


def test_the_directory_goes_and_comes_back(folder: Path) -> None:
    fill(folder, a=3)
    source = FileSpout(folder)
    coordinator = source.coordinator(CONTEXT)
    metas = plan(source)
    away = folder.with_name("away")
    folder.rename(away)
    for act in (lambda: coordinator.plan(metas, 10), coordinator.targets):
        with pytest.raises(PartitionUnavailableError, match="cannot be read"):
            act()
    assert coordinator.unreadable(metas).keys() == {"a"}
    with pytest.raises(PartitionUnavailableError, match="is not there on the host"):
        rows(source, "a", metas["a"])
    away.rename(folder)
    assert coordinator.plan(metas, 10) == {}
    assert coordinator.unreadable(metas) == {}


def test_an_empty_mount_point_is_no_deletion(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(folder, a=3)
    source = FileSpout(folder)
    coordinator = source.coordinator(CONTEXT)
    metas = plan(source, limit=1)
    (folder / "a").unlink()
    monkeypatch.setattr(coordinator._directory, "_device", -1)
    with pytest.raises(PartitionUnavailableError, match="is on another device than when this run began"):
        coordinator.plan(metas, 10)
    assert coordinator.unreadable(metas).keys() == {"a"}


@pytest.mark.parametrize("damage", [truncate, rewrite, Path.unlink])
def test_another_host_may_see_a_file_late(
    folder: Path, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder, a=20)
    source = FileSpout(folder)
    (meta,) = plan(source).values()
    damage(folder / "a")
    monkeypatch.setattr(platform, "node", lambda: "worker-7")
    with pytest.raises(PartitionUnavailableError, match="as the host worker-7 sees it"):
        rows(source, "a", meta)


# --- what cannot be decoded ---------------------------------------------------------------------------------


def test_invalid_utf8(folder: Path) -> None:
    (folder / "a").write_bytes(b"one\ntwo\nthr\xff\xfe" + b"e" * 200 + b"\n")
    source = FileSpout(folder)
    (meta,) = plan(source).values()
    with pytest.raises(DecodeError) as caught:
        rows(source, "a", meta)
    message = str(caught.value)
    assert f"{folder / 'a'}, byte 8, line 3: it is not UTF-8: invalid start byte at byte 3" in message
    assert "errors='replace'" in message
    assert len(message) < 400
    lenient = FileSpout(folder, errors="replace")
    assert values(lenient, "a", meta)[2].startswith("thr\ufffd\ufffde")


JSON_LINES = [
    b'{"word": "gr\xc3\xb6\xc3\x9fe", "n": 1, "new": [1]}',
    b"",
    b' {"n": null}\r',
    b"  \t",
    b'{"word": "x", "n": -5}',
]


def test_json(folder: Path) -> None:
    (folder / "a").write_bytes(b"\n".join(JSON_LINES) + b"\n" + b'{"word": "unfinished"')
    source = FileSpout(folder, "json", "word string, n bigint", with_origin=True)
    (meta,) = plan(source).values()
    assert meta.records == 5, "blank lines count as lines"
    second = len(JSON_LINES[0]) + 2
    third = second + len(JSON_LINES[2]) + 1 + len(JSON_LINES[3]) + 1
    assert rows(source, "a", meta) == [
        {"word": "größe", "n": 1, "path": "a", "offset": 0},
        {"word": None, "n": None, "path": "a", "offset": second},
        {"word": "x", "n": -5, "path": "a", "offset": third},
    ]


def test_blank_json_lines_alone_make_no_batch(folder: Path) -> None:
    (folder / "a").write_bytes(b"\n\n")
    source = FileSpout(folder, "json", "n bigint")
    (meta,) = plan(source).values()
    assert rows(source, "a", meta) == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"n": 1', "it is not JSON"),
        (b'{"n": "1"}', "field 'n'"),
        (b"[1]", "not a JSON object"),
        (b'{"n": \xff}', "it is not UTF-8"),
    ],
)
def test_malformed_json(folder: Path, line: bytes, reason: str) -> None:
    (folder / "a").write_bytes(b'{"n": 1}\n\n' + line + b'\n{"n": 2}\n')
    source = FileSpout(folder, "json", "n bigint")
    (meta,) = plan(source).values()
    with pytest.raises(DecodeError) as caught:
        rows(source, "a", meta)
    assert str(caught.value).startswith(f"{folder / 'a'}, byte 10, line 3: ")
    assert reason in str(caught.value)


def test_a_file_name_that_is_not_utf8(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/a\xff")).write_text("x\n")
    with pytest.raises(UsageError, match=r"b'a\\xff' is not UTF-8; rename the file"):
        plan(FileSpout(folder))


# --- the source ---------------------------------------------------------------------------------------------


@each(
    ("arguments", "error", "message"),
    [
        ({"directory": ""}, TopologyError, "needs a directory"),
        ({"format": "parquet"}, TopologyError, "format is 'parquet'; it must be 'text' or 'json'"),
        ({"errors": "ignore"}, TopologyError, "errors is 'ignore'"),
        ({"schema": "line string"}, TopologyError, "text has no schema: its output is 'value string'"),
        ({"format": "json"}, TopologyError, "format='json' needs a schema"),
        ({"format": "json", "schema": "a strin"}, SchemaError, "unknown type"),
        ({"format": "json", "schema": "a map<int,string>"}, SchemaError, "declare map<string,...>"),
        ({"format": "json", "schema": "path string", "with_origin": True}, TopologyError, "column 'path'"),
        ({"pattern": "a/*.log"}, TopologyError, "pattern is 'a/*.log'"),
        ({"pattern": ""}, TopologyError, "pattern is ''"),
        ({"max_line_bytes": 0}, TopologyError, "max_line_bytes is 0; it must be at least 1"),
        ({"max_batch_bytes": -1}, TopologyError, "max_batch_bytes is -1"),
        ({"max_records_per_partition": 0}, TopologyError, "max_records_per_partition is 0"),
    ],
)
def test_wrong_arguments(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        FileSpout(**{"directory": "logs", **arguments})
    assert message in str(caught.value)


def test_a_directory_that_does_not_exist_is_told_when_it_is_opened(folder: Path) -> None:
    with pytest.raises(UsageError, match="logs/none does not exist; create it first"):
        FileSpout(folder / "none").coordinator(CONTEXT)
    fill(folder, a=1)
    with pytest.raises(UsageError, match="logs/a is a file"):
        FileSpout(folder / "a").coordinator(CONTEXT)


def test_a_relative_directory_is_the_same_one_everywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    source = FileSpout("logs")
    monkeypatch.chdir("/")
    assert source.directory == folder
    assert source.identity() == {"directory": str(folder), "format": "text"}
    assert repr(source) == f"FileSpout({str(folder)!r}, 'text')"


def test_an_empty_range_needs_no_file(folder: Path) -> None:
    assert rows(FileSpout(folder), "a", FileRange(3, 3, 0)) == []


def test_a_range_that_no_plan_made_is_refused(folder: Path) -> None:
    fill(folder, a=3)
    source = FileSpout(folder)
    (meta,) = plan(source).values()
    with pytest.raises(DataLostError):
        rows(source, "a", replace(meta, start=meta.start + 1, records=1))
