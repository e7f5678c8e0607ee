"""Every txstream name in docs/coming-from-storm.md exists."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from support.guide import DOCS
from support.lists import each

import txstream
import txstream.testing
from txstream.api import bolts, declarer

TEXT = (DOCS / "coming-from-storm.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| Storm")
]
OURS = sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row[1])})
COMMANDS = [name for name in OURS if name.startswith("txstream ")]
ARGUMENTS = [name for name in OURS if name.endswith("=")]
NAMES = [name for name in OURS if name not in {*COMMANDS, *ARGUMENTS}]
# `name=` in the guide is an argument of one of these.
CALLED = (
    txstream.TopologyBuilder,
    txstream.TransactionalTopologyBuilder,
    txstream.TopologyBuilder.set_bolt,
    txstream.SqlState,
)


def found(name: str) -> Any:
    """Return the object with this dotted name, which may be a method or a field of a class."""
    home: Any = txstream
    first, *rest = name.split(".")
    if first == "testing":
        home, (first, *rest) = txstream.testing, rest
    known = {"Bolt": bolts.Bolt, "BoltDeclarer": declarer.BoltDeclarer}
    value = known.get(first) or getattr(home, first)
    for member in rest:
        fields = getattr(value, "__dataclass_fields__", {})
        value = fields[member] if member in fields else getattr(value, member)
    return value


def test_the_guide_has_tables() -> None:
    assert len(ROWS) > 70
    assert all(len(row) in (2, 3) and row[1] for row in ROWS), "every row says what there is, or none"
    assert COMMANDS
    assert ARGUMENTS
    assert NAMES
    assert [row[1] for row in ROWS if not re.search("`", row[1]) and row[1] != "none"] == []


@each("name", NAMES)
def test_a_name_of_ours_exists(name: str) -> None:
    assert found(name) is not None


@each("name", ARGUMENTS)
def test_an_argument_exists(name: str) -> None:
    assert name.removesuffix("=") in {p for called in CALLED for p in inspect.signature(called).parameters}


def test_a_name_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AttributeError):
        found("TopologyBuilder.set_bold")
    with pytest.raises(AttributeError):
        found("RichSpout")
