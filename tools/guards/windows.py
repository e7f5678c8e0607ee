"""Mistakes about windows: what closes them, when, and who is late."""

from __future__ import annotations

from guards import proofs
from guards.guard import Guard

_ROOM = "txstream/plugins/windows"
_TESTS = "tests/plugins/windows/test_window_state.py"
_PURE = "tests/plugins/windows/test_watermark.py"
_MARKED = proofs.SQLITE_KEEPS.format("optional")
_CLOSES = f"{_TESTS}::test_windows_close_and_what_is_late_is_a_dead_letter[opaque-driver]"

_STREAM = (
    "tests/plugins/windows/test_closed_stream.py::"
    "test_each_window_is_emitted_once_in_the_batch_after_the_one_that_closed_it[opaque-auto]"
)

WINDOWS = (
    Guard(
        "windows",
        "the watermark is that of the metas, not of the process",
        "txstream/engine/loop/planning.py",
        "self._keepers.next(plan.horizons, taken, waiting, now)",
        "self._keepers.next({}, taken, waiting, now)",
        _CLOSES,
    ),
    Guard(
        "windows",
        "a new leader knows what was committed before it",
        "txstream/engine/commit/horizon_keepers.py",
        'self._learned |= {} if row is None else row.details.get("learned", {})',
        "pass",
        "tests/unit/test_horizon_keeper.py::"
        "test_a_batch_marks_what_is_due_and_its_replay_marks_the_same[opaque-driver]",
    ),
    Guard(
        "windows",
        "what an attempt has learned counts once it cannot run again",
        f"{_ROOM}/watermark.py",
        "        return later(self._known[1], *heard(told))\n",
        "        self._known = self._known[0], later(self._known[1], *heard(told))\n"
        "        return self._known[1]\n",
        f"{_PURE}::test_what_is_learned_counts_once_it_is_committed",
    ),
    Guard(
        "windows",
        "the watermark never falls",
        f"{_ROOM}/watermark.py",
        "found if before is None else max(before, found)",
        "found",
        f"{_PURE}::test_it_never_falls_and_waits_for_each_partition",
    ),
    Guard(
        "windows",
        "each partition with unread records is waited for",
        f"{_ROOM}/watermark.py",
        "earliest = min(latest[partition] for partition in unread)",
        "earliest = max(latest[partition] for partition in unread)",
        f"{_PURE}::test_it_never_falls_and_waits_for_each_partition",
    ),
    Guard(
        "windows",
        "a partition that cannot be read is waited for",
        "txstream/engine/loop/planning.py",
        "{*metas.unavailable, *spout.passed_over, *spout.held_back}",
        "{*spout.passed_over, *spout.held_back}",
        f"{_TESTS}::test_a_partition_that_is_away_holds_the_watermark_back[opaque]",
    ),
    Guard(
        "windows",
        "a time far after the clock says nothing",
        f"{_ROOM}/bolt.py",
        ".filter(pc.less_equal(times, clock + AHEAD))",
        "",
        f"{_TESTS}::test_a_record_from_the_year_2099_closes_nothing",
    ),
    Guard(
        "windows",
        "a record is late by what the batch before has closed",
        f"{_ROOM}/bolt.py",
        'until = None if self.horizon is None else self.horizon["late"]',
        'until = None if self.horizon is None else self.horizon["watermark"]',
        f"{_TESTS}::test_a_record_of_the_batch_that_closes_its_window_counts[opaque]",
    ),
    Guard(
        "windows",
        "a window that ends at the watermark is closed",
        "txstream/state/sql/writer.py",
        "where(flag == false(), time <= limit)",
        "where(flag == false(), time < limit)",
        _MARKED,
        promise="due-rows-are-marked",
    ),
    Guard(
        "windows",
        "rows close behind the batch's writes",
        "txstream/state/commit_protocol.py",
        "            rows = _write(here, attempt, writes)\n"
        "            self._write_committed(here, commit, rows)\n",
        "            self._write_committed(here, commit, 0)\n"
        "            rows = _write(here, attempt, writes)\n",
        _MARKED,
        promise="due-rows-are-marked",
    ),
    Guard(
        "windows",
        "a closed row keeps its values of before the batch",
        "txstream/state/sql/writer.py",
        "        if semantics is Semantics.OPAQUE:  # first, because MySQL assigns one after the other\n",
        "        if False:\n",
        _MARKED,
        promise="due-rows-are-marked",
    ),
    Guard(
        "windows",
        "a share that is written again opens no closed row",
        "txstream/state/sql/writer.py",
        "                    again = merged[name]  # a share",
        "                    pass  # a share",
        _MARKED,
        promise="due-rows-are-marked",
    ),
    Guard(
        "windows",
        "the stream of closed windows has what is settled",
        f"{_ROOM}/emitting.py",
        'horizon.get("since"), horizon.get("late")',
        'horizon.get("late"), horizon.get("watermark")',
        _STREAM,
    ),
    Guard(
        "windows",
        "the stream of closed windows has none twice",
        f"{_ROOM}/emitting.py",
        "        first = None if after is None else moment(after)\n",
        "        first = None\n",
        _STREAM,
    ),
)
