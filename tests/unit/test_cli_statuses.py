"""Exit statuses of all commands: 2 where a restart would repeat the mistake, 1 for all else."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ui_site import filled

from txstream.cli.main import main, parser

CODE = "txstream.examples.word_count:topology"
NO_SERVER = "127.0.0.1:1"
NO_DATABASE = ["--database", "postgresql://u@127.0.0.1:1/x"]
AWAY = {"--zookeeper": NO_SERVER, "--kafka": NO_SERVER, "--connect-timeout": "0.2"}
FAULTY = "def raises():\n    raise ValueError\ndef none():\n    pass\n"

SERVICES = {
    "compare": [CODE, "--topic", "t"], "dead-letters retry": ["words"], "delete": ["words", "--yes"],
    "doctor": [], "fsck": ["words"], "pause": ["words"], "recover": ["words", "--from-ledger"],
    "resume": ["words"], "run": [CODE], "scale": ["words", "a=1"], "status": [], "stop": ["words"],
    "topic create": ["t"], "topic produce": ["t", "lines.txt"], "topologies": [],
}  # fmt: skip
"""Commands that need a service, which does not answer."""

LEDGER: dict[str, list[tuple[list[str], int]]] = {
    "batches": [
        (["words"], 0), (["words", "--before", "1"], 0), (["nix"], 1), (["words", *NO_DATABASE], 1),
        (["words", "--database", "sqlite:///lines.txt"], 1), (["words", "--last", "0"], 2),
        (["words", "--since", "dawn"], 2), (["words", "--database", "nonsense://x"], 2), (["a/b"], 2),
    ],
    "show": [(["words", "5"], 0), (["words", "999"], 1), (["words", "five"], 2)],
    "state list": [(["words"], 0), (["nix"], 1)],
    "state get": [
        (["words", "words", "the"], 0), (["words", "words", "zzz"], 1), (["words", "nix", "k"], 1),
        (["words", "words", "a", "b"], 2),
    ],
    "state top": [(["words", "words"], 0), (["words", "nix"], 1), (["words"], 2)],
    "state diff": [
        (["words", "words", "--txid", "5"], 0), (["words", "words", "--txid", "999"], 1),
        (["words", "words"], 2),
    ],
    "dead-letters list": [(["words"], 0), (["nix"], 1)],
    "dead-letters show": [(["words", "lines/0", "1"], 1), (["words", "lines/0", "one"], 2)],
    "dead-letters export": [
        (["words", "--out", "x.jsonl"], 0), (["nix", "--out", "x.jsonl"], 1),
        (["words", "--out", "no/x.jsonl"], 2), (["words", "--out", "x.odd"], 2),
    ],
    "dead-letters drop": [(["words"], 0), (["nix"], 1), (["words", "--all"], 2)],
    "db upgrade": [([], 0), (NO_DATABASE, 1), (["--database", "nonsense://x"], 2)],
    "replay": [
        (["words", "1", "--topology", "faulty:raises"], 1), (["words", "9..2", "--topology", CODE], 2),
        (["words", "1"], 2),
    ],
    "why": [(["words", "words", "the", "--topology", "faulty:raises"], 1), (["words", "words", "the"], 2)],
    "ui": [
        (["--zookeeper", NO_SERVER, "--port", "TAKEN"], 1),
        (["--zookeeper", NO_SERVER, "--port", "70000"], 2),
        (["--zookeeper", NO_SERVER, "--host", "0.0.0.0"], 2), ([], 2),
    ],
    "run": [
        ([CODE, "--zookeeper", NO_SERVER, "--kafka", NO_SERVER, "--metrics", "TAKEN"], 1),
        ([CODE, "--zookeeper", NO_SERVER, "--kafka", NO_SERVER, "--metrics", "x:y"], 2),
    ],
}  # fmt: skip
"""Commands over a ledger with the topology `words`, and what each ends with."""

OTHERS: dict[str, list[tuple[list[str], int]]] = {
    "describe": [
        ([CODE], 0), (["faulty:raises"], 1), (["faulty:none"], 1), (["faulty:nix"], 2), (["nix:nix"], 2),
        ([CODE, "-p", "nix=1"], 2),
    ],
    "simulate": [([CODE, "--rows", "nofile"], 2), (["faulty:raises"], 1)],
    "init": [(["made", "--no-such"], 2), (["full"], 2), (["a b"], 2)],
    "wait": [([], 2)],
    "savepoint create": [([], 2)],
    "fork": [(["words"], 2), (["words", "new", "--at", "a", "--from", "1"], 2)], "diff": [(["words"], 2)],
    "savepoint list": [], "savepoint drop": [([], 2)], "rewind": [([], 2)],
    "swap": [([], 2), (["new", "--drop-kept", "--back"], 2)],
    "package": [(["--out", "x.zip"], 0), ([], 2)],
    "down": [([], 0)], "up": [(["--brokers", "0"], 2)], "demo": [(["--semantics", "x"], 2)],
}  # fmt: skip


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, one in (command or parser()).commands.items():
        if getattr(one, "commands", None):
            yield from commands(one, (*path, name))
        else:
            yield " ".join((*path, name))


def test_statuses_1_and_2_are_used_as_documented(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE", "MASTER", "STATE_DATABASES"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)
    rig = filled(tmp_path, 5)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "faulty.py").write_text(FAULTY)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "lines.txt").write_text("a\n")
    every = set(commands())
    assert every == {*SERVICES, *LEDGER, *OTHERS}, "a command has no row here"
    cases = [(name, ["--nonsense"], 2) for name in every]
    away = [text for pair in AWAY.items() for text in pair]
    for name, given in SERVICES.items():
        without = away[2:] if name.startswith("topic") or name == "compare" else away
        cases.append((name, [*given, *without], 1))
    with socket.create_server(("127.0.0.1", 0)) as taken, Path(os.devnull).open() as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        port = str(taken.getsockname()[1])
        for table, more in ((LEDGER, ["--database", rig.url]), (OTHERS, [])):
            for name, rows in table.items():
                for given, status in rows:
                    own = [] if "--database" in given else more
                    cases.append((name, [port if one == "TAKEN" else one for one in given] + own, status))
        wrong = []
        for name, given, status in cases:
            found = main([*name.split(), *given])
            told = capsys.readouterr()
            if found != status or "Traceback" in told.err or "unexpected" in told.err:
                wrong.append((name, given, found, status, told.err[-200:]))
    assert wrong == []
