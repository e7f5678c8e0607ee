"""Letters that are in the middle of a retry cannot be dropped: a driver is killed between the commits of two
real databases, PostgreSQL and SQLite."""

from __future__ import annotations

import json
import signal
from dataclasses import replace

import pytest
from support.runs import Launcher
from support.tables import read_rows
from support.texts import create_topic, produce

MODULE = """
import os

from txstream import *


@bolt(output="word string")
def check(tup):
    if tup["word"].startswith("bad") and not os.environ.get("REPAIRED"):
        raise ValueError("no word")
    yield tup["word"]


def topology(name, other, commit):
    source = KafkaSource(name, decode=Decode("json", "word string"))
    builder = TransactionalTopologyBuilder(
        name, "words", TransactionalSpout(source), dead_letters=DeadLetters(max_share=1.0), commit=commit
    )
    builder.set_bolt("check", check).shuffle_grouping("words")
    for number, url in enumerate((None, other)):
        state = SqlState(f"{name}_{number}", key="word string", value="n bigint", url=url)
        store = builder.set_committer_bolt(f"store{number}", SqlStateBolt(state, n=Count()))
        store.fields_grouping("check", "word")
    return builder.build()
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("commit", ["driver", pytest.param("executors", marks=pytest.mark.soak)])
def test_letters_that_a_half_committed_batch_retries_cannot_be_dropped(
    launcher: Launcher, postgres_url: str, sqlite_url: str, unique: str, commit: str
) -> None:
    launcher = replace(launcher.without_spark, database=postgres_url)
    (launcher.directory / "dropped_letters.py").write_text(MODULE, encoding="utf-8")
    create_topic(launcher.services.kafka, unique, 1)
    words = ["a", "bad1", "b", "bad2", "a"]
    produce(launcher.services.kafka, unique, [json.dumps({"word": word}).encode() for word in words], 1)
    command = [
        *("run", "dropped_letters:topology", "-p", f"name={unique}", "-p", f"other={sqlite_url}"),
        *("-p", f"commit={commit}", "--until", "caught-up", "--session-timeout", "5"),
    ]
    ended = launcher.run(*command)
    assert ended.status == 0, ended.stderr
    assert launcher.run("dead-letters", "retry", unique, "--later").status == 0
    at = {"TXSTREAM_FAULT": "kill@between-commits:2", "REPAIRED": "yes"}
    assert launcher.start(*command, **at).wait().status == -signal.SIGKILL

    refused = launcher.run("dead-letters", "drop", unique, "--yes")
    assert (refused.status, "is needed by txid 2" in refused.stderr) == (1, True), refused.stderr
    ended = launcher.run(*command, REPAIRED="yes")
    assert ended.status == 0, ended.stderr
    for number, url in enumerate((postgres_url, sqlite_url)):
        found = {row["word"]: row["n"] for row in read_rows(url, f"{unique}_{number}")}
        assert found == {"a": 2, "b": 1, "bad1": 1, "bad2": 1}, url
    assert launcher.run("fsck", unique).status == 0
    dropped = launcher.run("dead-letters", "drop", unique, "--yes")
    assert (dropped.status, dropped.stdout) == (0, f"deleted 2 dead letters of {unique}\n"), dropped.stderr
