"""Where faults happen: one way to write it, to read it and to say it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from support.lists import each

from txstream.cli.faults import Fault, parse_fault
from txstream.core.coordinator import BatchPhase
from txstream.core.errors import UsageError
from txstream.core.fault_points import At, Point
from txstream.core.transaction import Txid


@each("point", Point)
def test_what_is_written_is_read(point: Point) -> None:
    at = At(point, 12)
    assert At.parse(str(at)) == at
    for fault in (Fault("kill", at), Fault("stop", at, only_open=True)):
        assert parse_fault(str(fault)) == fault


def test_a_fault_leaves_a_note_of_where_it_struck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    struck: list[int] = []
    monkeypatch.setattr(
        "txstream.cli.faults.signal.pthread_kill", lambda _thread, number: struck.append(number)
    )
    fault = parse_fault("stop@after-commit:1+open", tmp_path / "fault.json")
    fault(Point.AFTER_COMMIT, Txid(1), {Txid(1): "committing"})
    assert struck == []
    for _ in range(2):
        fault(Point.AFTER_COMMIT, Txid(2), {Txid(2): "committing", Txid(3): "processed"})
    assert struck == [signal.SIGSTOP]
    found = json.loads((tmp_path / "fault.json").read_text(encoding="utf-8"))
    assert (found["point"], found["txid"], found["open"]) == ("after-commit", 2, {"3": "processed"})


def test_a_place_in_a_sentence() -> None:
    assert str(At(Point.AFTER_COMMIT, 3)) == "after-commit:3"
    assert At(Point.AFTER_COMMIT, 3).shown == "after commit of txid 3"
    assert At(BatchPhase.PROCESSING, 2).shown == "processing of txid 2"


@each(
    "text",
    [
        "",
        "kill",
        "kill@x:1",
        "kill@after-commit",
        "kill@after-commit:-1",
        "burn@after-commit:1",
        "kill@after-commit:1+",
        "kill@processing:1",
    ],
)
def test_what_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write kill@POINT:TXID"):
        parse_fault(text)
