"""A pause in the timeline says why nothing began: who waits for what is told, and idle time is idle."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.lists import each

from txstream.core.failing_batch import SEARCHED, Wait
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid, attempt_id
from txstream.inspect import Batch, LedgerEntry
from txstream.plugins.web.timeline import drawn

pytest.importorskip("starlette")

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def batch(
    txid: int,
    at: float,
    lasted: float = 0.01,
    details: Mapping[str, Any] | None = None,
    *,
    epoch: int = 1,
    away: str = "",
) -> Batch:
    """A committed batch that was planned so many seconds after noon."""
    planned = NOON + timedelta(seconds=at)
    committed = planned + timedelta(seconds=lasted)
    ranges = {"lines/0": {"start": txid, "end": txid + 1}}
    metas = {"partitions": ranges, "unavailable": {away: "gone"} if away else {}}
    attempt, times = attempt_id(epoch, txid), (planned, committed, committed)
    given: Any = ("db", "u", attempt, Semantics.OPAQUE, "committed", 1, 1, *times, None, metas, details or {})
    return Batch(Txid(txid), "committed", (LedgerEntry(*given),))


USUAL = [batch(txid, txid / 10) for txid in range(1, 11)]


def waited(what: str, since: float, until: float) -> dict[str, Any]:
    at, end = ((NOON + timedelta(seconds=seconds)).isoformat() for seconds in (since, until))
    return {"waits": [{"what": what, "since": at, "until": end}]}


@each(
    "later, told",
    [
        (batch(11, 11.0), "idle 10.0 s"),
        (batch(11, 11.0, details=waited("the database", 2.0, 11.0)), "waiting 10.0 s"),
        (batch(11, 11.0, details=waited("the database", 9.0, 11.0)), "idle 10.0 s"),
        (batch(11, 11.0, details=waited(f"{SEARCHED}2", 2.0, 11.0)), "searching 10.0 s"),
        (batch(11, 11.0, epoch=2), "no driver 10.0 s"),
    ],
)
def test_a_pause_says_why(later: Batch, told: str) -> None:
    found = drawn([*USUAL, later])
    assert found is not None
    assert [one.text for one in found.chart.pauses] == [told]


def test_a_batch_that_takes_long_and_a_partition_that_is_away_are_no_idle_time() -> None:
    found = drawn([*USUAL, batch(11, 1.1, 9.0), batch(12, 11.1, away="lines/1"), batch(13, 21.1)])
    assert found is not None
    assert [one.text for one in found.chart.pauses] == ["processing 10.0 s", "partition away 10.0 s"]


def test_a_search_is_told_as_one() -> None:
    searching = Wait(f"{SEARCHED}3", NOON + timedelta(seconds=2), "1 of 9 records left to try", "")
    found = drawn(USUAL, waiting=[searching], now=NOON + timedelta(seconds=12))
    assert found is not None
    assert f"looks for {SEARCHED}3" in [one.text for one in found.chart.outages]
    ended = drawn([*USUAL, batch(11, 9.0, details=waited(f"{SEARCHED}3", 2.0, 9.0))])
    assert ended is not None
    assert f"looked for {SEARCHED}3" in [one.text for one in ended.chart.outages]


def test_a_pause_after_a_takeover_has_a_driver() -> None:
    found = drawn([*USUAL, batch(11, 11.0, epoch=2), batch(12, 21.0, epoch=2)])
    assert found is not None
    assert [one.text for one in found.chart.pauses] == ["no driver 10.0 s", "idle 10.0 s"]
