"""Parsing, exit statuses, and what is printed on which stream."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.lists import each
from support.recovering import empty_database

from txstream.cli import java, run as run_module
from txstream.cli.logs import LibraryLog
from txstream.cli.main import _flags_last, main, parser
from txstream.core.errors import BoltError, FencedError, ServiceUnavailableError
from txstream.engine.loop.report import RunReport
from txstream.plugins.local import embedded

WORD_COUNT = "txstream.examples.word_count:topology"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE", "MASTER", "FAULT"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(java, "find_java", lambda: java.Java(Path("java"), 17))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runn"], ["runn", "txstream --help"]),
        (["run"], ["MODULE:FACTORY", "txstream run --help"]),
        (["run", WORD_COUNT, "--nonsense"], ["--nonsense", "txstream run --help"]),
        (["run", WORD_COUNT, "--until-txid", "two"], ["--until-txid", "integer"]),
        (["run", WORD_COUNT, "--until-txid", "0"], ["--until-txid is 0"]),
        (["run", WORD_COUNT, "--until", "dawn"], ["caught-up", "dawn", "--until-txid"]),
        (["run", WORD_COUNT, "--until", "caught-up", "--until-txid", "3"], ["not both"]),
        (["run", WORD_COUNT, "--id", "a/b"], ["--id", "slash"]),
        (["run", WORD_COUNT, "--id", "🎈"], ["--id", "🎈", "printable characters", "without emoji"]),
        *(
            ([*command.split(), "🎈", *more.split()], ["ID", "🎈", "without emoji"])
            for command, more in (
                ("status", ""),
                ("batches", ""),
                ("show", "1"),
                ("state list", ""),
                ("state get", "t k"),
                ("state top", "t"),
                ("state diff", "t --txid 1"),
                ("fsck", ""),
                ("recover", "--from-ledger"),
                ("scale", "a=1"),
                ("delete", "-y"),
            )
        ),
        (["run", WORD_COUNT, "-p", "topic"], ["-p", "NAME=VALUE"]),
        (["run", WORD_COUNT, "-p", "tpoic=x"], ["tpoic", "topic, semantics, table"]),
        (["run", WORD_COUNT, "-p", "semantics=exact"], ["opaque, transactional or non-transactional"]),
        (["run", WORD_COUNT, "--spark-conf", "x"], ["--spark-conf", "NAME=VALUE"]),
        (["run", WORD_COUNT, "--py-files", "no.zip"], ["no.zip", "no such file"]),
        (["run", WORD_COUNT], ["no ZooKeeper was given", "txstream up", "TXSTREAM_ZOOKEEPER"]),
        (["run", "no_module:topology"], ["no_module"]),
        (["topic", "create", "lines"], ["no Kafka was given", "txstream up", "TXSTREAM_KAFKA"]),
        (["topic", "create", "a b"], ["'a b' is not a Kafka topic name"]),
        (["topic", "create", "lines", "--partitions", "0"], ["--partitions"]),
        (["topic", "produce", "lines"], ["FILE", "txstream topic produce --help"]),
        (["topic", "produce", "lines", "no.txt", "--kafka", "127.0.0.1:1"], ["no.txt", "no such file"]),
        (["topic", "produce", "lines", "-", "--key", "user"], ["--key", "--format json"]),
        (["up", "--brokers", "0"], ["--brokers"]),
        (["status", "--connect-timeout", "0"], ["--connect-timeout"]),
        (["demo", "--words", "10"], ["--words", "1000"]),
        (["demo", "--semantics", "exactly"], ["exactly", "opaque"]),
        (["demo", "flood"], ["flood", "outage"]),
        (["demo", "--injected"], ["txstream demo outage --injected"]),
        (["demo", "outage", "--semantics", "non-transactional"], ["give no --semantics"]),
        (["demo", "outage", "--master", "spark://a:7077"], ["spark://a:7077", "this machine"]),
        (["package"], ["--out"]),
        (["package", "--out", "x.whl"], ["x.zip"]),
        (["state", "top", "x"], ["TABLE", "txstream state top --help"]),
        (["state", "get", "x", "t", "-7"], ["No such option", "comes last, after `--`"]),
    ],
)
def test_usage_errors_are_one_line_and_status_2(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert err.startswith("txstream: ")
    assert all(word in err for word in words), err
    assert list(tmp_path.iterdir()) == [], "nothing was written"


def test_help_shows_a_commands_own_options_and_names_the_others_in_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["state", "top", "--help"]) == 0
    short = " ".join(capsys.readouterr().out.split())
    assert "--rows" in short
    assert "--kafka SERVERS" not in short
    assert "As most commands, it takes --debug, --quiet, --verbose, --json, --data-dir, --zookeeper," in short
    assert "`txstream state top --help -v` shows them." in short
    for typed in (["-v", "state", "top", "--help"], ["state", "top", "--help", "-v"]):
        assert main(typed) == 0
        assert "--kafka SERVERS" in capsys.readouterr().out


@each("arguments", [["--help"], ["run", "-h"], ["state", "top", "--help"]])
def test_help_is_status_0(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert "Usage: txstream" in capsys.readouterr().out


def groups() -> list[list[str]]:
    """The words that call the command itself and each group of commands."""
    commands = parser().commands
    return [[], *([name] for name, one in commands.items() if hasattr(one, "commands"))]


@each("typed", groups(), ids=" ".join)
def test_without_a_command_the_help_is_shown_and_the_status_is_2(
    typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error: nobody asked for it, so a pipe gets nothing."""
    main([*typed, "--help"])
    wanted = capsys.readouterr().out
    assert main(typed) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.rstrip("\n") == wanted.rstrip("\n")


@pytest.mark.parametrize("typed", groups(), ids=" ".join)
def test_a_list_of_commands_cuts_no_sentence_at_80_columns(
    typed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    main([*typed, "--help"])
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith("...")] == []


def test_every_command_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    out = capsys.readouterr().out
    wanted = ["demo", "up", "down", "status", "run", "batches", "state", "topologies", "delete", "db"]
    assert all(f"\n  {name} " in out for name in wanted)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("txstream 0.")


@pytest.mark.parametrize(
    ("typed", "needed"),
    [
        (["--help"], []),
        (["status", "words"], ["kazoo"]),  # looks for embedded services, and finds none
        (["scale", "words", "count=2", "--zookeeper", "127.0.0.1:1", "--connect-timeout", "1"], ["kazoo"]),
    ],
)
def test_a_command_imports_what_it_needs(typed: list[str], needed: list[str], tmp_path: Path) -> None:
    program = (
        "import sys; from txstream.cli.main import main; main(sys.argv[1:]);"
        "heavy = {'pyspark', 'pyarrow', 'kafka', 'kazoo', 'sqlalchemy', 'alembic', 'rich'};"
        "sys.exit(repr(sorted(heavy & sys.modules.keys())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *typed],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "TXSTREAM_ZOOKEEPER": ""},
    )
    assert done.stderr.splitlines()[-1] == repr(needed), done.stderr


STATUS_OF_KAFKA = """
import sys
from dataclasses import replace
from support import memory_zookeeper
from txstream.cli import status
from txstream.cli.main import main
from txstream.inspect.source import KAFKA_SOURCE

memory_zookeeper.IDENTITY = replace(memory_zookeeper.IDENTITY, spout=KAFKA_SOURCE)
zookeeper = memory_zookeeper.MemoryZooKeeper()
zookeeper.run_topology("words", driver=False)
status.open_zookeeper = zookeeper.opened
addresses = ["--zookeeper", "127.0.0.1:1", "--kafka", "127.0.0.1:1", "--database", sys.argv[1]]
assert main(["status", "words", *addresses]) == 0
heavy = {"pyspark", "pyarrow.compute", "alembic", "rich"}
heavy |= {"txstream.state.sql.writer", "txstream.plugins.proof.stores"}
heavy |= {"txstream.plugins.local.sqlite", "txstream.plugins.mysql.dialect", "txstream.state.sql.postgresql"}
heavy |= {f"sqlalchemy.dialects.{name}" for name in ("sqlite", "postgresql")}
print(sorted(heavy & sys.modules.keys()))
"""


def test_status_of_an_idle_topology_loads_one_dialect_and_nothing_that_writes(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(empty_database())
    done = subprocess.run(
        [sys.executable, "-c", STATUS_OF_KAFKA, f"sqlite:///{tmp_path / 'state.db'}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    *shown, loaded = done.stdout.splitlines() or [done.stderr]
    assert loaded == repr(["sqlalchemy.dialects.sqlite", "txstream.plugins.local.sqlite"]), done.stderr
    assert any(line.startswith("lag        not known: ") for line in shown)


def test_python_dash_m_is_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "txstream", "run", "nowhere:x"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "nowhere" in done.stderr


# --- how a run ends ----------------------------------------------------------------------------------------


def run_that_raises(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def raising(*arguments: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(run_module, "_run", raising)


def test_a_runs_json_is_only_json_whatever_bolts_print_on_the_driver(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def run_that_prints(*arguments: Any, **options: Any) -> tuple[RunReport, bool]:
        print("from a bolt")
        return RunReport("words", "0", "opaque", 1, 1, 1, 1, 1, 0, 0, 0, 1.0, True), False

    monkeypatch.setattr(run_module, "_run", run_that_prints)
    assert main(["run", WORD_COUNT, "--zookeeper", "127.0.0.1:1", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["topology"] == "words"
    assert "from a bolt" in err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ServiceUnavailableError("no broker answered at 127.0.0.1:1"), 1),
        (FencedError("a newer leader, epoch 7, runs this topology"), 3),
        (RuntimeError("a bug"), 1),
        (KeyboardInterrupt("interrupted"), 130),
    ],
)
def test_exit_statuses(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_that_raises(monkeypatch, error)
    assert main(["run", WORD_COUNT, "--zookeeper", "127.0.0.1:1", "--quiet"]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert str(error) in err


@each(
    ("typed", "meant"),
    [
        ("--json -q status words", "status --json -q words"),
        ("--debug state get a b -- -7", "state get --debug a b -- -7"),
        ("-v db upgrade", "db upgrade -v"),
        ("status --json words", "status --json words"),
        ("-q state", "state -q"),
        ("--json nonsense", "nonsense"),
        ("-q --version", "--version"),
        ("--json", "--json"),
        ("--data-dir x status", "--data-dir x status"),
    ],
)
def test_flags_of_every_command_may_stand_before_it(typed: str, meant: str) -> None:
    assert _flags_last(typed.split()) == meant.split()


@pytest.mark.parametrize("typed", ["--json describe {}", "describe {} --json"])
def test_json_before_or_after_the_command(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed.format("txstream.examples.word_count:topology").split()) == 0
    assert json.loads(capsys.readouterr().out)["topology"] == "word-count"


def test_a_traceback_is_shown_with_debug_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = BoltError("txid 1 attempt 1.1, component 'count': ValueError")
    error.add_note("Traceback (on the executor, most recent call last):")
    run_that_raises(monkeypatch, error)
    arguments = ["run", WORD_COUNT, "--zookeeper", "127.0.0.1:1"]
    assert main(arguments) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "--debug shows the traceback" in err
    assert main([*arguments, "--debug"]) == 1
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert "on the executor" in err


def test_no_java_is_told_before_anything_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def missing() -> java.Java:
        raise ServiceUnavailableError("no Java was found: install Java 17 or 21")

    monkeypatch.setattr(java, "find_java", missing)
    assert main(["run", WORD_COUNT, "--zookeeper", "127.0.0.1:1"]) == 1
    told = "no Java was found: install Java 17 or 21 (guide: errors.md, ServiceUnavailableError)"
    assert capsys.readouterr().err == f"txstream: {told}\n"
    assert main(["demo"]) == 1
    assert list(tmp_path.iterdir()) == []


def test_unknown_topology_names_the_command_that_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batches", "nobody"]) == 1
    assert "`txstream topologies`" in capsys.readouterr().err
    assert not Path(".txstream").exists(), "looking for a database must not make one"


def test_db_upgrade_makes_the_tables_and_tells_both_revisions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "upgrade", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["from"] is None
    assert main(["db", "upgrade", "--json"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert second["from"] == second["to"] == first["to"]


def test_state_top_names_the_tables_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    main(["db", "upgrade"])
    capsys.readouterr()
    assert main(["state", "top", "nobody", "words"]) == 1
    assert "nobody" in capsys.readouterr().err


# --- logs --------------------------------------------------------------------------------------------------


def test_standard_error_has_our_lines_only_and_the_file_all(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    main(["topologies"])
    capsys.readouterr()
    logging.getLogger("kafka.client").warning("a broker went away")
    logging.getLogger("txstream.engine").warning("waiting for partition lines/3")
    told = "waiting for partition lines/3 (guide: errors.md, ServiceUnavailableError)"
    assert capsys.readouterr().err == f"{told}\n"
    assert list(tmp_path.iterdir()) == [], "no folder is made by a command that only looks"

    Path(".txstream").mkdir()
    logging.getLogger("kazoo.client").error("connection dropped")
    assert capsys.readouterr().err == ""
    (log,) = (tmp_path / ".txstream" / "logs").iterdir()
    assert "kazoo.client: connection dropped" in log.read_text()


def test_setting_up_logs_again_replaces_the_handlers() -> None:
    for _ in range(3):
        main(["topologies"])
    assert len([h for h in logging.getLogger().handlers if isinstance(h, LibraryLog)]) == 1
    assert len(logging.getLogger("txstream").handlers) == 1


def test_a_log_that_cannot_be_written_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    Path(".txstream").mkdir()
    Path(".txstream/logs").write_text("")
    main(["topologies"])
    capsys.readouterr()
    for _ in range(2):
        logging.getLogger("kazoo.client").error("connection dropped")
    (line,) = capsys.readouterr().err.splitlines()
    assert "logs" in line
    assert "cannot be written: [Errno" in line


# --- the data directory ------------------------------------------------------------------------------------


@each("folder", ["file", "file/below"])
@each(
    "arguments",
    [
        ["up"],
        ["status"],
        ["batches", "x"],
        ["db", "upgrade", "--zookeeper", "127.0.0.1:1", "--kafka", "127.0.0.1:1"],
        ["demo"],
        ["run", WORD_COUNT, "--zookeeper", "127.0.0.1:1", "--kafka", "127.0.0.1:1"],
    ],
)
def test_a_data_directory_that_cannot_be_one(
    arguments: list[str], folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text("")
    assert main([*arguments, "--data-dir", folder]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"txstream: the data directory {Path(folder).absolute()} cannot be used: not a directory"
    )
    assert line.endswith("; give another one with --data-dir")
    assert "unexpected" not in line


def test_a_full_disk_is_told_with_the_data_directory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    Path("data").mkdir()

    def full(*_: object, **__: object) -> None:
        Path("/dev/full").write_text("x")

    monkeypatch.setattr(embedded, "up", full)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    assert main(["up", "--data-dir", "data"]) == 2
    said = f"txstream: the data directory {tmp_path / 'data'} cannot be used: no space left on device; "
    assert capsys.readouterr().err == f"{said}make room there, or give another one with --data-dir\n"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 30))
    assert main(["up", "--data-dir", "data"]) == 1
    assert "data directory" not in capsys.readouterr().err, "it was another disk"


def test_the_shell_completes_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("_TXSTREAM_COMPLETE", "complete_bash"), ("COMP_WORDS", "txstream sta")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.split() == ["status", "state"]
