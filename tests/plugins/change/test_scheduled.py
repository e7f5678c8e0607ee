"""Savepoints that the leader makes by itself, and what `delete` says of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from support.saved_rigs import SavedRig

from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.engine.start.companions import Leading
from txstream.plugins.change import registry
from txstream.plugins.change.registry import MAKING
from txstream.plugins.change.savepoints import create_savepoint, opened, saved, saved_in, savepoints
from txstream.plugins.change.scheduled import (
    EVERY,
    KEPT,
    ScheduledSavepoints,
    belongings,
    scheduled_savepoints,
)
from txstream.spouts.memory import MemorySpout

HOUR = timedelta(hours=1)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[SavedRig]:
    with MemorySpout("word string, number bigint", {"words/0": [("a", 1), ("b", 2), ("a", 3)]}) as source:
        made = SavedRig(tmp_path, source)
        yield made
        if made.test is not None:
            made.test.close()


def test_one_is_made_when_it_is_due_and_the_newest_are_kept(rig: SavedRig) -> None:
    rig.start().run()
    create_savepoint("words", "mine", rig.settings)
    now = datetime.now(UTC)
    committed = False
    with opened("words", rig.settings) as databases:
        beside = ScheduledSavepoints("words", databases, HOUR, 2, lambda: committed)
        assert beside.look(now) is None, "nothing is committed"
        committed = True
        first = beside.look(now)
        assert first == f"auto_{now:%Y%m%d_%H%M%S}"
        assert beside.look(now + HOUR / 2) is None
        restarted = ScheduledSavepoints("words", databases, HOUR, 2, lambda: True)
        assert restarted.look(now + HOUR / 2) is None, "a restart does not make one more"
        names = [restarted.look(now + number * HOUR * 2) for number in (1, 2)]
        assert [one.name for one in saved("words", databases)] == [*map(str, names), "mine"]
        assert f"words_0__sp_{first}" not in rig.tables(0)
        part = saved_in(databases[1], "words")[str(names[1])]
        with databases[1].sessions.writing("half") as (connection, _):
            registry.update(connection, type(part)(**{**_fields(part), "status": MAKING}))
        again = restarted.look(now + HOUR * 6)
        assert [one.name for one in saved("words", databases)] == [str(names[0]), str(again), "mine"]


def _fields(part: Any) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.__dataclass_fields__}


def test_a_database_that_is_away_is_no_end_and_the_next_look_makes_it(rig: SavedRig) -> None:
    rig.start().run()
    with opened("words", rig.settings) as databases:
        beside = ScheduledSavepoints("words", databases, HOUR, 2, lambda: True)
        rig.files[1].rename(rig.files[1].with_suffix(".away"))
        databases[1].close()
        rig.files[1].mkdir()
        with pytest.raises(ServiceUnavailableError):
            beside.look(datetime.now(UTC))
        rig.files[1].rmdir()
        rig.files[1].with_suffix(".away").rename(rig.files[1])
        assert beside.look(datetime.now(UTC))


def test_the_environment_asks_for_them(rig: SavedRig, monkeypatch: pytest.MonkeyPatch) -> None:
    test = rig.start()
    test.run()
    with opened("words", rig.settings) as databases:
        store: Any = None
        leading = Leading(test.topology, cast(Any, None), databases, store, lambda: test.current)
        assert scheduled_savepoints(leading) is None
        for name, given in ((EVERY, "often"), (EVERY, "-1"), (KEPT, "0")):
            monkeypatch.setenv(EVERY, "1")
            monkeypatch.setenv(name, given)
            with pytest.raises(UsageError, match=f"{name} is '{given}'; it must be a number"):
                scheduled_savepoints(leading)
        monkeypatch.setenv(KEPT, "3")
        beside = scheduled_savepoints(leading)
        assert beside is not None
        beside.start()
        while not savepoints("words", rig.settings):
            beside._stopped.wait(0.05)
        beside.stop(30)
        (made,) = savepoints("words", rig.settings)
        assert made.name.startswith("auto_")
        assert belongings(databases[0], "words", drop=False) == [f"words_0__sp_{made.name}"]
        for database in databases:
            belongings(database, "words", drop=True)
        assert not savepoints("words", rig.settings)
        assert not [name for name in rig.tables(1) if "__sp_" in name]
