"""The README's program and commands, taken from the README itself."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from support.runs import Launcher
from support.tables import read_counts
from support.texts import fill_topic, make_lines

from txstream.embedded import Services

README = Path(__file__).parents[2] / "README.md"


def code_blocks(language: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)
    return [code for found, code in blocks if found == language]


def commands() -> list[list[str]]:
    """Every `txstream` command line of the README, without its comment."""
    lines = [line for block in code_blocks("") for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("txstream ")]


def test_the_program_and_its_commands(
    launcher: Launcher, services: Services, tmp_path: Path, unique: str
) -> None:
    (program,) = code_blocks("python")
    (tmp_path / "word_count.py").write_text(program, encoding="utf-8")
    truth = fill_topic(services.kafka, "lines", make_lines(500))
    run, *inspections = [
        command
        for command in commands()
        if command[0] in ("run", "state", "batches") and "--master" not in command
    ]
    outcome = launcher.run(*run)
    assert outcome.status == 0, outcome.stderr
    assert read_counts(launcher.database, "word_count") == truth
    assert len(inspections) == 2
    for command in inspections:
        shown = launcher.run(*command)
        assert shown.status == 0, shown.stderr
        assert shown.stdout.strip()


def test_every_command_it_names_exists(launcher: Launcher) -> None:
    table = set(re.findall(r"`txstream ([a-z]+)", README.read_text(encoding="utf-8")))
    known = launcher.run("--help").stdout
    assert {"demo", "run", "up", "status"} <= table
    for command in table | {command[0] for command in commands()}:
        assert re.search(rf"^\s+{command}\s", known, re.M), f"there is no command {command}"
