"""A dry run of a batch with a `LookupBolt` reads its table as it is today, and says so."""

from __future__ import annotations

import json
import sys
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from txstream import MemorySpout, OpaqueSpout, inspect
from txstream.cli.main import main
from txstream.examples.lookups import FIELDS, graph
from txstream.settings import Settings
from txstream.testing import TopologyTest

COLUMNS = f"{FIELDS}, topic string, partition int, offset bigint"


def user(offset: int, name: str) -> tuple[Any, ...]:
    return ("u1", name, "Oslo", None, None, "users", 0, offset)


def order(offset: int) -> tuple[Any, ...]:
    return ("u1", None, None, None, Decimal(1), "orders", 0, offset)


def test_what_is_looked_up_again_is_the_table_of_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(database=f"sqlite:///{tmp_path / 's.db'}")
    with MemorySpout(COLUMNS, {"users/0": [user(0, "Ann")], "orders/0": [order(0)]}) as source:
        made = graph(OpaqueSpout(source, max_batch_records=10))
        with TopologyTest(made, database=settings.database) as test:
            test.run()
            source.append("orders/0", order(1))
            test.run()
            last = test.current - 1
            assert inspect.replay(made, 1, settings, last=last).same
            source.append("users/0", user(1, "Anna"))
            test.run()
        found = inspect.replay(made, last, settings)
        told = {one.table: one for one in found.tables}
        assert (told["users"].same, told["orders"].same) == (True, None)
        assert told["orders"].note is not None
        assert "was looked up in 'users', read as of today" in told["orders"].note
        assert inspect.replay(made, last + 1, settings).same  # the batch's own row comes first
        because = inspect.why(made, "orders", ("orders", 0, 1), settings)
        assert "rows are looked up in table 'users' as it is today" in because.notes[0]
        assert because.lookups == "today"
        monkeypatch.setitem(sys.modules, "joining", SimpleNamespace(topology=lambda: made))
        options = ("--topology", "joining:topology", "--database", str(settings.database))
        assert main(["replay", "lookups", f"{last + 1}", *options]) == 0  # the same, and yet it is said
        assert "note: rows are looked up in table 'users' as it is today" in capsys.readouterr().err
        for expected, *command in (
            ("today", "replay", "lookups", f"{last + 1}"),
            ("today", "why", "lookups", "orders", "orders", "0", "1"),
            (None, "why", "lookups", "users", "u1"),
        ):
            assert main([*command, *options, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["lookups"] == expected
