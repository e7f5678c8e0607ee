"""Who is told of a rewind is named before it begins, and who is not; a bolt of anybody's says which it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from txstream.cli.main import main
from txstream.plugins.change import rewinding

CODE = """
from txstream import (
    BasicBolt, Count, DeadLetters, KafkaSinkBolt, KafkaSource, OpaqueSpout, SqlState, SqlStateBolt,
    TransactionalTopologyBuilder, Versions,
)


class Mail(BasicBolt):
    writes_to = ("mail.example.org",)

    def execute(self, tup, collector):
        pass


class Ledger(Mail):
    writes_to = ("the books",)
    tells_rewinds = True


def topology():
    source = KafkaSource("lines", publish_group="dashboards")
    letters = DeadLetters(max_share=0.5, topic="dead-lines")
    builder = TransactionalTopologyBuilder("words", "lines", OpaqueSpout(source), dead_letters=letters)
    builder.set_bolt("mail", Mail()).shuffle_grouping("lines")
    builder.set_bolt("book", Ledger()).shuffle_grouping("lines")
    state = SqlState("totals", key="value string", value="n bigint", changes_to="changes")
    builder.set_committer_bolt("count", SqlStateBolt(state, n=Count())).fields_grouping("lines", "value")
    kept = SqlState("kept", key="value string", value="n bigint", changes_to=Versions())
    builder.set_committer_bolt("keep", SqlStateBolt(kept, n=Count())).fields_grouping("lines", "value")
    builder.set_committer_bolt("alert", KafkaSinkBolt("alerts", value="value")).shuffle_grouping("lines")
    return builder.build()
"""


def test_who_follows_is_named_before_a_rewind_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "followed_words.py").write_text(CODE)

    def rewind(topology_id: str, to: str, settings: Any, *, confirm: Any) -> Any:
        confirm(f"Put {topology_id} back to {to}?")
        raise AssertionError

    monkeypatch.setattr(rewinding, "rewind", rewind)
    command = ["rewind", "words", "3", "--zookeeper", "127.0.0.1:1"]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert told.startswith("who follows words is not known here: its code is known only in the folder from")
    noted = tmp_path / ".txstream" / "code" / "words.json"
    noted.parent.mkdir(parents=True)
    noted.write_text(json.dumps({"target": "followed_words:topology", "parameters": []}))
    assert main(command) == 2
    first, second, third = capsys.readouterr().err.splitlines()[:3]
    assert first == (
        "told of it at the next start: alerts (component alert), the books (component book), topic changes "
        "(changes of totals)"
    )
    assert second == (
        "not told, so tell them: consumer group dashboards (it goes back with the next commit), "
        "mail.example.org (component mail), topic dead-lines (dead letters)"
    )
    assert "Put words back to 3?" in third
