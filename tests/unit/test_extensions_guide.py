"""`docs/extensions.md`: its package, installed as printed, adds a command and a format that work as ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.guide import DOCS

from txstream.core import entry_points

TEXT = (DOCS / "extensions.md").read_text(encoding="utf-8")
BUILD = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
# Ships a source as a job does, and reads records as the executors do.
READ = """
import json, pickle, sys
from txstream import Decode, KafkaSource
from txstream.core.dead_letters import DeadLetter
from txstream.core.errors import TxstreamError

def letter(offset, value):
    return DeadLetter("", "parcels", 3, offset, 0, value, value, None, "parcels", "", "", "")

name, schema, *values = sys.argv[1:]
for columns in [None, ["key"], ["offset"]]:
    keys = {"key_format": name, "key_schema": schema} if columns == ["key"] else {}
    decode = Decode(name, schema, tombstones="null", **keys)
    source = KafkaSource("parcels", decode=decode, kafka_columns=columns)
    source = pickle.loads(pickle.dumps(source))
    records = [letter(offset, value.encode()) for offset, value in enumerate(values[:-1])]
    print(source.decoded([*records, letter(9, None)]).to_pylist())
try:
    source.decoded([records[0], letter(7, values[-1].encode())])
except TxstreamError as error:
    print(type(error).__name__, error)
print(source.undecoded().decoded(records[:1])["value"].to_pylist() == [values[0].encode()])
try:
    KafkaSource("parcels", decode=Decode("csv"))
except TxstreamError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the guide's package, built by its own pyproject.toml and unpacked as pip does."""
    folder = tmp_path_factory.mktemp("parcels")
    for language, name, code in re.findall(r"^```(toml|python)\n# (\S+)\n(.*?)^```$", TEXT, re.M | re.S):
        assert (language, name) in {("toml", "pyproject.toml"), ("python", "parcels.py")}
        (folder / name).write_text(code, encoding="utf-8")
    command = [sys.executable, "-c", BUILD, str(folder / "dist")]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    assert built.returncode == 0, built.stderr
    (wheel,) = (folder / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(site)},
    )


def test_a_strangers_command_reads_a_strangers_format_and_ours(site: Path) -> None:
    shown = re.search(r"^```text\ntxstream (read-as tsv) \"(.*)\" \"(.*)\"\n(.*)\n```$", TEXT, re.M)
    assert shown is not None
    done = run(site, "-m", "txstream", *shown[1].split(), *shown.groups()[1:3])
    assert (done.stdout, done.stderr, done.returncode) == (f"{shown[4]}\n", "", 0)
    ours = '{"id": "7", "weight": "0.5"}'
    done = run(site, "-m", "txstream", "read-as", "json", "id string, weight string", ours)
    assert (done.stdout, done.stderr, done.returncode) == (f"{shown[4]}\n", "", 0)


def test_a_source_reads_by_a_strangers_format_as_by_ours(site: Path) -> None:
    """Values and keys, with Kafka's columns and without, tombstones, dead letters, and what is refused."""
    theirs = run(site, "-c", READ, "tsv", "id weight", "7\t0.5", "8\t1.5", "9")
    objects = [f'{{"id": "{key}", "weight": "{weight}"}}' for key, weight in (("7", "0.5"), ("8", "1.5"))]
    ours = run(site, "-c", READ, "json", "id string, weight string", *objects, "9")
    assert (theirs.stderr, ours.stderr) == ("", "")
    told, expected = theirs.stdout.splitlines(), ours.stdout.splitlines()
    rows = "{'id': '7', 'weight': '0.5'}, {'id': '8', 'weight': '1.5'}, {'id': None, 'weight': None}"
    assert (told[0], len(told)) == (f"[{rows}]", 6)
    assert told[:3] == expected[:3]
    reasons = "it has 1 fields instead of 2", "it is not a JSON object but the number 9"
    assert reasons[1] in expected[3]
    assert told[3] == expected[3].replace(reasons[1], reasons[0])
    assert "at offset 7 of topic 'parcels', partition 3" in told[3]
    assert "value_format='string'" in told[3]
    assert told[4:] == expected[4:]
    assert told[4] == "True"
    known = "'json' or 'avro' or 'debezium' or 'protobuf' or 'tsv', or what"
    assert re.match(f"value_format is 'csv'; .*{known}", told[5])


def test_every_group_is_in_the_table() -> None:
    groups = {value for name, value in vars(entry_points).items() if name.isupper()}
    assert set(re.findall(r"^\| `(txstream\.\w+)` \|", TEXT, re.M)) == groups
