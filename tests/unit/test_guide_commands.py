"""What README.md and docs/ name exists: commands with their flags, files, headings.

tests/acceptance/test_guides.py runs the commands.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.guide import DOCS, GUIDES, ShownCommand, commands_of, files_of, load
from support.lists import each

from tracked_wheel import ROOT
from txstream.cli.main import parser

COMMANDS = [
    pytest.param(guide, command, id=f"{guide.name}:{command.line}")
    for guide in GUIDES
    for command in commands_of(guide)
]
INLINE = [
    pytest.param(span, id=f"{guide.name}: {' '.join(span.split())[:60]}")
    for guide in GUIDES
    for span in re.findall(
        r"`((?:txstream|python|make) [^`]+)`", guide.read_text(encoding="utf-8").replace("```", "")
    )
]


def find(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that these words call, and its arguments."""
    found: Any = parser()
    while hasattr(found, "commands") and words and words[0] in found.commands:
        found, words = found.commands[words[0]], words[1:]
    return found, words


@each(("guide", "command"), COMMANDS)
def test_a_command_exists_and_takes_what_it_is_given(guide: Path, command: ShownCommand) -> None:
    for program, *words in command.calls:
        match program:
            case "txstream":
                found, arguments = find(words)
                assert not hasattr(found, "commands"), "it lacks its subcommand"
                # A command remembers the first names of its help: those that all have.
                found.make_context("txstream", arguments, **parser().context_settings)
            case "python" if words[0] == "-m":
                assert importlib.util.find_spec(words[1]) is not None
            case "python":
                assert (
                    words[:2] == ["-m", "pytest"]
                    or words[0] in files_of(guide)
                    or (ROOT / words[0]).is_file()
                )
            case "make":
                assert words[0] in targets()
            case "pip":
                assert extras(" ".join(words)) <= known_extras()


@each("span", INLINE)
def test_a_command_in_a_sentence_exists_with_its_flags(span: str) -> None:
    program, *words = shlex.split(re.sub(r"[\[\]\\|]|\.\.\.", " ", span))
    if program == "txstream":
        found, arguments = find(words)
        known = {flag for one in found.params for flag in one.opts}
        assert {word for word in arguments if re.match(r"--?[a-z]", word)} <= known | {"--help"}
        assert not hasattr(found, "commands") or not arguments or arguments[0].startswith("-")
    elif program == "make":
        assert words[0] in targets()
    elif words[0] != "-m":
        assert (ROOT / words[0]).is_file()


def test_the_unit_file_is_one_and_starts_a_command_that_exists(tmp_path: Path) -> None:
    (shown,) = re.findall(
        r"^```ini\n(.*?)^```$", (DOCS / "systemd.md").read_text(encoding="utf-8"), re.M | re.S
    )
    (program, words) = re.findall(r"^ExecStart=(\S+/txstream) (.+)$", shown, re.M)[0]
    found, arguments = find(words.split())
    found.make_context("txstream", arguments, **parser().context_settings)
    unit = tmp_path / "word-count.service"
    unit.write_text(shown.replace(program, sys.executable), encoding="utf-8")
    verify = shutil.which("systemd-analyze")
    if verify is not None:
        done = subprocess.run([verify, "verify", unit], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_code_that_no_command_runs(tmp_path: Path) -> None:
    guide = load(DOCS / "kafka.md", tmp_path)
    assert guide.topology().id == "clicks"
    exec(files_of(DOCS / "python.md")["elsewhere.py"], {})
    (tmp_path / "ca.pem").touch()
    assert "client=<sasl_mechanism, " in repr(guide.secured(str(tmp_path / "ca.pem")))


@each("guide", GUIDES, ids=lambda guide: guide.name)
def test_its_links_lead_somewhere(guide: Path) -> None:
    for link in re.findall(r"\]\((?!https://)([^)\s]+)\)", guide.read_text(encoding="utf-8")):
        name, _, heading = link.partition("#")
        target = guide.parent / name if name else guide
        assert target.exists(), link
        assert not heading or heading in headings(target), link


def headings(guide: Path) -> set[str]:
    """The anchors of a guide's headings."""
    found = re.findall(r"^#+ (.+)$", guide.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_the_index_has_every_guide_once() -> None:
    index = DOCS / "README.md"
    listed = re.findall(r"^- \[([\w.-]+)\]\(\1\): ", index.read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == sorted(guide.name for guide in DOCS.glob("*.md") if guide != index)


def test_extras_that_are_to_be_installed_exist() -> None:
    for guide in GUIDES:
        assert extras(guide.read_text(encoding="utf-8")) <= known_extras()


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def extras(text: str) -> set[str]:
    return {name for found in re.findall(r"txstream\[([\w,]+)\]", text) for name in found.split(",")}


def known_extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])
