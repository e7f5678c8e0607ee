"""An invalid topology is refused with one sentence and the right status, before any service is asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from support.lists import each
from support.runs import WORD_COUNT

from txstream.cli.main import main

FACTORIES: Mapping[str, tuple[int, Sequence[str]]] = {
    "no_such_module:topology": (2, ["no_such_module"]),
    "txstream.examples.word_count:no_such": (2, ["no_such", "topology"]),
    "txstream.examples.word_count": (2, ["MODULE:FACTORY"]),
    "broken_module:topology": (1, ["ZeroDivisionError", "broken_module.py"]),
    "broken_module:not_a_topology": (1, ["not_a_topology", "Topology"]),
    "broken_module:wrong_field": (1, ["wort", "count", "lines"]),
}
PARAMETERS: Mapping[str, Sequence[str]] = {
    "tpoic=lines": ["tpoic", "topic"],
    "parallelism=two": ["parallelism", "two", "int"],
    "semantics=exactly": ["semantics", "exactly", "opaque"],
    "topic": ["NAME=VALUE"],
}
BROKEN = """
from txstream import *


def topology():
    return 1 // 0


def not_a_topology():
    return "nothing"


def wrong_field():
    b = TransactionalTopologyBuilder("wrong", "lines", OpaqueSpout(KafkaSource("lines")))
    b.set_bolt("count", CountBolt("value")).fields_grouping("lines", "wort")
    return b.build()
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for service in ("ZOOKEEPER", "KAFKA"):
        monkeypatch.setenv(f"TXSTREAM_{service}", "127.0.0.1:1")
    (tmp_path / "broken_module.py").write_text(BROKEN)
    yield
    sys.modules.pop("broken_module", None)


def assert_told(capsys: pytest.CaptureFixture[str], *words: str) -> None:
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert told.count("\n") == 1
    for word in words:
        assert word in told


@each("target", FACTORIES)
def test_a_factory_that_does_not_exist_or_raises(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, words = FACTORIES[target]
    assert main(["run", target]) == status
    assert_told(capsys, *words)


@each("parameter", PARAMETERS)
def test_a_parameter_of_unknown_name_or_wrong_type(
    parameter: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", WORD_COUNT, "-p", parameter]) == 2
    assert_told(capsys, *PARAMETERS[parameter])


def test_a_traceback_only_with_debug(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "broken_module:topology", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
