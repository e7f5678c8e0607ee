"""The demo's own parts: its text, its expected counts, and how a difference is reported."""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from txstream.cli.context import Cli
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, Txid
from txstream.inspect.ledgers import throughput
from txstream.plugins.local import demo_services
from txstream.plugins.local.demo import Demo, Result, _tell, differences
from txstream.plugins.local.demo_text import VOCABULARY, count_words, make_text, vocabulary
from txstream.settings import Settings
from txstream.state import BatchRecord


def test_the_text_is_the_same_every_time_and_has_as_many_words_as_asked_for() -> None:
    text = make_text(20_000)
    assert text == make_text(20_000)
    assert sum(len(line.split()) for line in text) == 20_000
    assert all(1 <= len(line.split()) <= 13 for line in text)


def test_words_can_be_spoken_and_differ() -> None:
    words = vocabulary(VOCABULARY, random.Random(1))
    assert len(set(words)) == VOCABULARY
    assert all(word.isascii() and word.isalpha() and set(word) & set("aeiou") for word in words)
    assert max(map(len, words)) < 25


def test_the_distribution_is_zipf() -> None:
    counts = [n for _, n in count_words(make_text(200_000)).most_common()]
    assert len(counts) > 5_000
    # Rank times frequency is roughly constant.
    assert 0.7 < 10 * counts[9] / counts[0] < 1.4
    assert 0.7 < 100 * counts[99] / counts[0] < 1.4


def test_counting_splits_at_whitespace_and_changes_nothing() -> None:
    assert count_words(["a b  a", "", "B\tb"]) == Counter({"a": 2, "b": 2, "B": 1})


def test_every_kind_of_difference_is_found() -> None:
    truth, table = {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 3, "d": 4}
    assert differences(truth, table) == [("b", 2, 3), ("c", 3, 0), ("d", 0, 4)]
    assert differences(truth, truth) == []


REPORT = {"records": 9, "seconds": 1.0, "records_per_second": 9.0, "replayed_attempts": 1}
REPORT |= {"recovered_batches": 0, "epoch": 2}


def finished(cli: Cli, table: dict[str, int]) -> tuple[Demo, Result]:
    lines = ["a a b", "a c"]
    here = Demo(cli, Settings(), "opaque", "txstream-demo-1", "demo_1", lines, count_words(lines))
    return here, Result(table, REPORT, 12, {"txid": 1, "open": {"2": "processing"}}, [2], 9.0)


def test_exact_totals_end_in_yes_and_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert _tell(*finished(Cli(), {"a": 3, "b": 1, "c": 1})) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == "exact: yes"
    assert "replayed attempts: 2 (txid 2, open at the kill)" in out


def test_other_totals_end_in_no_and_1_and_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _tell(*finished(Cli(), {"a": 5, "b": 1})) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == "exact: no"
    assert "  a: 3 in the text, 5 in the table" in out
    assert "  c: 1 in the text, 0 in the table" in out


def test_a_non_transactional_demo_says_what_was_counted_twice(capsys: pytest.CaptureFixture[str]) -> None:
    here, result = finished(Cli(), {"a": 5, "b": 2, "c": 1})
    here = replace(here, semantics="non-transactional")
    assert _tell(here, result) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(
        "exact: no, 3 words too many: txid 1 was committed before the kill and counted again"
    )
    assert _tell(here, replace(result, table={"a": 3, "b": 1, "c": 1})) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "exact: yes"


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert _tell(*finished(Cli(as_json=True), {"a": 3, "b": 1, "c": 2})) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["exact"] is False
    assert document["differences"] == [{"word": "c", "text": 1, "table": 2}]
    assert (document["batches"], document["replayed_attempts"]) == (12, 2)


def test_a_small_text_has_several_batches_too() -> None:
    here, _ = finished(Cli(), {})
    assert here.records_per_partition == 1


def test_throughput_is_counted_from_the_first_commit_to_the_last() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    batches = [
        BatchRecord(
            *("words", "0", Txid(txid), AttemptId(txid), Semantics.OPAQUE, "committed", {}, 100, 5),
            *(start, start, start + timedelta(seconds=txid / 2), None),
        )
        for txid in (1, 2, 3)
    ]
    assert throughput(batches) == 200.0
    assert throughput(batches[:1]) == throughput([]) == 0.0


class Stuck:
    """A driver that does not end when it is asked to."""

    pid = 0
    killed = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.answers: Iterator[BaseException] = iter(
            [KeyboardInterrupt(), subprocess.TimeoutExpired("it", 1)]
        )

    def communicate(self, timeout: float) -> tuple[str, None]:
        raise next(self.answers)

    def terminate(self) -> None:
        pass

    def kill(self) -> None:
        Stuck.killed = True

    def wait(self) -> None:
        pass


def test_an_interrupted_demo_says_so_though_its_driver_had_to_be_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Stuck)
    with pytest.raises(KeyboardInterrupt):
        demo_services.run_driver([], {})
    assert Stuck.killed
