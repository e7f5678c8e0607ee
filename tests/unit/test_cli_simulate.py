"""`txstream simulate`: its exit status, what it prints, what it saves, and how that is replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from txstream.cli.main import main

FACTORY = "support.simulated:counts_by"
WRONG = "support.simulated:forgetful"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["simulate", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_word_count_needs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--schedules", "5")
    assert status == 0
    assert out.startswith("5 schedules")
    assert "crash points: " in out
    assert out.endswith("exact: yes\n")


@pytest.mark.soak
def test_json_has_the_coverage(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, FACTORY, "--schedules", "5", "--seed", "7", "--json")
    document = json.loads(out)
    assert (status, document["exact"], document["schedules"]) == (0, True, 5)
    assert {"crash_points", "crash_pairs", "faults", "per_cpu_second"} <= document.keys()


def test_a_failure_is_saved_and_replayed_step_by_step(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved = tmp_path / "schedule.json"
    status, out, _ = run(capsys, WRONG, "--seed", "1", "--schedules", "50", "--save", str(saved))
    assert status == 1
    assert "the schedule of seed " in out
    assert "WrongResultError: after the commit of txid " in out
    assert ", table 'kept'" in out
    assert out.endswith("exact: no\n")
    assert "history" in json.loads(saved.read_text())
    status, out, _ = run(capsys, WRONG, "--replay", str(saved))
    assert status == 1
    assert out.startswith("step 1\n")
    assert "exact: no; WrongResultError: " in out
    status, out, _ = run(capsys, WRONG, "--replay", str(saved), "--json")
    assert (status, json.loads(out)["error"]) == (1, "WrongResultError")


def test_rows_come_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"account": "anna", "amount": 5}\n\n["bob", 3]\n')
    factory = "txstream.examples.accounts:topology"
    status, _, err = run(capsys, factory, "--rows", str(rows), "--schedules", "3")
    assert (status, err) == (0, "")
    rows.write_text('{"account": "anna", "amount": 5}\n{"account": "anna", "amount": -7}\n')
    status, _, _ = run(capsys, factory, "--rows", str(rows), "--partition-by", "account", "--schedules", "3")
    assert status == 0


def test_lines_of_a_topic_are_read_as_its_source_reads_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    line = '{"user": {"id": "anna"}, "at": "2026-11-28T10:59:00Z", "price": "12.50", "ignored": [1]}'
    rows.write_text(f"{line}\n{line}\n")
    arguments = ["support.simulated:orders", "--rows", str(rows), "--schedules", "3"]
    assert run(capsys, *arguments)[::2] == (0, "")
    rows.write_text(line + '\n{"at": "10 o\'clock"}\n')
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert "rows.jsonl, line 2 does not fit" in err
    assert "is not a timestamp with a zone" in err


def test_rows_of_another_source_have_times_and_decimals_as_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"user": "anna", "at": "2026-11-28T10:59:00Z", "price": "12.50"}\n' * 2)
    arguments = ["support.simulated:orders", "-p", "is_kafka=false", "--rows", str(rows), "--schedules", "3"]
    assert run(capsys, *arguments)[::2] == (0, "")


@pytest.mark.soak
def test_what_shows_nothing_ends_with_status_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"account": "anna", "amount": 5}\n')
    arguments = ["txstream.examples.accounts:topology", "--rows", str(rows), "--schedules", "3"]
    status, out, _ = run(capsys, *arguments)
    assert (status, out.splitlines()[-1]) == (
        1,
        "nothing was shown: no schedule committed more than 1 batch; give more rows",
    )
    status, out, _ = run(capsys, *arguments, "--json")
    document = json.loads(out)
    assert (status, document["exact"]) == (1, False)
    assert document["nothing_shown"].startswith("no schedule committed")
    saved = tmp_path / "schedule.json"
    saved.write_text(
        '{"format": 1, "topology": "counts", "seed": 1, "steps": 0, "on_sqlite": 0, "cut": [1, 4]}'
    )
    status, out, _ = run(capsys, FACTORY, "--replay", str(saved))
    assert status == 1
    assert out.endswith("exact: no; NothingShownError: no fault struck\n")


def usage(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    return err


def test_what_cannot_be_meant_is_a_usage_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    assert "--schedules': Input should be greater than or equal to 1" in usage(capsys, "--schedules", "0")
    assert "--rows are for a topology of yours" in usage(capsys, "--rows", str(rows))
    accounts = "txstream.examples.accounts:topology"
    assert "reads a KafkaSource" in usage(capsys, accounts)
    assert "cannot be read" in usage(capsys, accounts, "--rows", str(rows))
    rows.write_text("anna\n")
    assert f"{rows}, line 1 is no JSON" in usage(capsys, accounts, "--rows", str(rows))
    rows.write_text('["anna", 1]\n')
    problem = usage(capsys, accounts, "--rows", str(rows), "--partition-by", "account")
    assert "has no such field" in problem
    assert "cannot be read" in usage(capsys, FACTORY, "--replay", str(tmp_path / "none.json"))


@pytest.mark.soak
def test_a_non_transactional_topology_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    arguments: list[Any] = [FACTORY, "-p", "semantics=non-transactional", "--schedules", "20"]
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    assert "as non-transactional topologies are" in out
    assert out.endswith("exact: no\n")
