"""A value whose decoder ends its process, as a fault in C does, is a dead letter that says so. In a retry it
stays one, and the driver goes on. Real Spark and Kafka."""

from __future__ import annotations

import json

import pytest
from support.runs import Launcher
from support.tables import read_rows
from support.texts import create_topic, produce

MODULE = """
import os
import signal

from txstream import *


class Deadly(KafkaSource):
    def letter_decoder(self, context):
        decode = super().letter_decoder(context)

        def decode_or_die(letters):
            if any(b"deadly" in letter.value for letter in letters):
                os.kill(os.getpid(), signal.SIGSEGV)
            return decode(letters)

        return decode_or_die


@bolt(output="word string")
def check(tup):
    if tup["word"].startswith("die"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if not os.environ.get("REPAIRED") and tup["word"] != "a":
        raise ValueError("no word")
    yield tup["word"]


def topology(name):
    source = Deadly(name, value_format="json", schema="word string")
    builder = TransactionalTopologyBuilder(
        name, "words", OpaqueSpout(source), dead_letters=DeadLetters(max_share=1.0), resident_tasks=0
    )
    builder.set_bolt("check", check).shuffle_grouping("words")
    state = SqlState(name, key="word string", value="n bigint")
    store = builder.set_committer_bolt("store", SqlStateBolt(state, n=Count()))
    store.fields_grouping("check", "word")
    return builder.build()
"""


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_letter_whose_decoder_ends_the_worker_stays_dead(launcher: Launcher, unique: str) -> None:
    (launcher.directory / "deadly_letters.py").write_text(MODULE, encoding="utf-8")
    create_topic(launcher.services.kafka, unique, 1)
    words = ["a", "bad", "deadly", "die", "a"]
    produce(launcher.services.kafka, unique, [json.dumps({"word": word}).encode() for word in words], 1)
    command = ["run", "deadly_letters:topology", "-p", f"name={unique}", "--until", "caught-up"]
    ended = launcher.run(*command)
    assert ended.status == 0, ended.stderr
    found = json.loads(launcher.run("dead-letters", "list", unique, "--json").stdout)["dead_letters"]
    told = {one["offset"]: one["message"] for one in found}
    assert sorted(told) == [1, 2, 3]
    assert "its worker process ended: signal 11 (Segmentation fault)" in told[3]
    assert launcher.run("dead-letters", "retry", unique, "--later").status == 0
    ended = launcher.run(*command, REPAIRED="yes")
    assert ended.status == 0, ended.stderr
    assert "its worker process ended: signal 11" in ended.stderr
    assert {row["word"]: row["n"] for row in read_rows(launcher.database, unique)} == {"a": 2, "bad": 1}
