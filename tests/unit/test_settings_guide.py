"""docs/settings.md has every setting that the code has, with its default and its commands, and no other."""

from __future__ import annotations

import inspect
import re
import tomllib
from dataclasses import MISSING, fields
from typing import Any

import pytest
from support.guide import DOCS

from tracked_wheel import ROOT
from txstream import TransactionalTopologyBuilder
from txstream.api.spouts import DEFAULT_MAX_BATCH_RECORDS
from txstream.cli.main import parser
from txstream.settings import _LISTS, _STRINGS, Settings

TEXT = (DOCS / "settings.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" |")]
    for line in TEXT.partition("## In the code")[0].splitlines()
    if line.startswith("| ") and not line.startswith("| flag ")
]
CODE = "\n".join(
    path.read_text(encoding="utf-8")
    for folder in ("txstream", "spouts", "bolts", "migrations")
    for path in (ROOT / folder).rglob("*.py")
)
NOT_FOR_USERS = {
    "SPARK_REUSE_WORKER",  # Spark sets it for its own worker processes
    "PYTHONHASHSEED",  # set for the process that runs a bolt again
}


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def groups() -> dict[str, set[str]]:
    """Return the commands that each name, such as `looking`, stands for. A name may use names before it."""
    found: dict[str, set[str]] = {}
    for name, meaning in re.findall(r"^- \*\*(\w+)\*\* means (.+?)[;.]$", TEXT, re.M | re.S):
        others = re.findall(r"\*(\w+)\*", meaning)
        found[name] = set(words(meaning)).union(*(found[other] for other in others))
    return found


def documented_flags() -> dict[tuple[tuple[str, ...], str], str]:
    """Return the documented default of each flag, by its spellings and command."""
    found: dict[tuple[tuple[str, ...], str], str] = {}
    for flag, _, _, default, commands, *_ in ROWS:
        spellings = tuple(sorted(word.split()[0] for word in words(flag)))
        named = {*words(commands)}.union(*(groups().get(name, ()) for name in commands.split(", ")))
        if spellings:
            found |= dict.fromkeys([(spellings, command) for command in named or {""}], default.strip("`"))
    return found


def flags(command: Any, path: str = "") -> list[tuple[tuple[str, ...], str, Any, bool]]:
    """Return spellings, command and default of each flag of the command line, and whether it is required."""
    found = [
        (tuple(sorted(one.opts)), path, one.default, one.required)
        for one in command.params
        if one.param_type_name == "option" and not one.hidden
    ]
    for name, below in getattr(command, "commands", {}).items():
        found += flags(below, f"{path} {name}".strip())
    return found


def test_every_flag_has_its_row() -> None:
    found = {(spellings, command) for spellings, command, *_ in flags(parser())}
    assert {*documented_flags()} == found


def test_every_flag_has_its_default() -> None:
    documented = documented_flags()
    for spellings, command, default, required in flags(parser()):
        shown = documented[spellings, command]
        if required:
            assert shown == "must be given", (spellings, command)
        elif default is None:
            assert not re.match(r"\d|off$", shown), (spellings, command)
        else:
            expected = (
                "off" if default is False else f"{default:g}" if isinstance(default, float) else str(default)
            )
            assert shown == expected, (spellings, command)


def test_every_field_of_settings_has_its_row_and_default() -> None:
    documented = {
        name: (default.strip("`"), flag)
        for flag, _, name_cell, default, *_ in ROWS
        for name in words(name_cell)
    }
    assert set(documented) == {field.name for field in fields(Settings)}
    for field in fields(Settings):
        default, flag = documented[field.name]
        value = field.default if field.default is not MISSING else None
        if not flag and isinstance(value, float):
            assert default == f"{value:g}", field.name


def test_every_key_and_its_variable() -> None:
    keys = {name for _, variable, *_ in ROWS for name in words(variable) if name.islower()}
    assert keys == {*_STRINGS, *_LISTS}
    for _, variable, field, *_ in ROWS:
        for key in keys.intersection(words(variable)):
            assert words(variable) == [f"TXSTREAM_{key.upper()}", key]
            assert words(field) == [key]


def test_every_variable_has_its_row() -> None:
    documented = {name for _, variable, *_ in ROWS for name in words(variable) if name.isupper()}
    read = set(re.findall(r"environ(?:\.get|\.setdefault)?[(\[]\"(\w+)\"", CODE)) - NOT_FOR_USERS
    ours = set(re.findall(r"\bTXSTREAM_[A-Z_]*[A-Z]\b", CODE))
    assert read | ours <= documented
    known = {f"TXSTREAM_{name.upper()}" for name in (*_STRINGS, *_LISTS)}
    invented = {name for name in documented - known if name.lower() not in CODE.lower()}
    assert not invented


def test_the_file_that_is_shown_is_understood(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*_STRINGS, *_LISTS):
        monkeypatch.delenv(f"TXSTREAM_{name.upper()}", raising=False)
    (shown,) = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.M | re.S)
    monkeypatch.delenv("TXSTREAM_ZOOKEEPER_PASSWORD", raising=False)
    (tmp_path / "password").write_text("secret\n")
    shown = shown.replace("/etc/counts/zookeeper.password", str(tmp_path / "password"))
    (tmp_path / "txstream.toml").write_text(shown, encoding="utf-8")
    monkeypatch.setenv("REGISTRY_PASSWORD", "one")
    found = Settings().resolve(tmp_path)
    given = tomllib.loads(shown.replace("${REGISTRY_PASSWORD}", "one"))
    assert set(given) == {*_STRINGS, *_LISTS}
    assert {name: getattr(found, name) for name in _STRINGS} == {name: given[name] for name in _STRINGS}
    assert found.state_databases == tuple(given["state_databases"])


def test_the_builders_arguments_and_their_defaults() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \|", TEXT.partition("## In the code")[2], re.M)
    parameters = inspect.signature(TransactionalTopologyBuilder).parameters.values()
    assert dict(rows) == {
        one.name: str(one.default) for one in parameters if one.default is not inspect.Parameter.empty
    }
    assert f"({DEFAULT_MAX_BATCH_RECORDS:,} unless given)" in TEXT
