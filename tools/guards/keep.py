"""Mistakes about tables with `keep`, which histories show in which clocks differ and rows expire."""

from __future__ import annotations

from guards import proofs, sources
from guards.guard import Guard
from guards.hunt import OPAQUE, TRANSACTIONAL, KeepHunt
from txstream.plugins.proof.simulation.world import WrongResultError

_RETENTION = "txstream/api/retention.py"
_TESTS = "tests/unit/test_keep.py"
_EXPIRED = proofs.SQLITE_KEEPS.format("optional")
_BOTH = (KeepHunt(WrongResultError, OPAQUE), KeepHunt(WrongResultError, TRANSACTIONAL))

KEEP = (
    Guard(
        "keep",
        "a horizon never goes back",
        _RETENTION,
        "max(math.floor(now) - seconds, before.get(table, _FIRST), _FIRST)",
        "max(math.floor(now) - seconds, _FIRST)",
        f"{_TESTS}::test_horizons_never_go_back",
        mutant="AHorizonGoesBack",
        does="A machine whose clock is behind takes over, and rows that were removed begin anew.",
        hunts=_BOTH,
    ),
    Guard(
        "keep",
        "a plan knows the horizons of the batch before",
        sources.COORDINATOR,
        "before.positions(), replay, before.horizons)",
        "before.positions(), replay)",
        f"{_TESTS}::test_a_longer_time_brings_nothing_back[opaque]",
        mutant="APlanForgetsWhatCameBefore",
        does="Each batch has the horizon of its driver's clock and `keep`, whatever the batch before had.",
        hunts=_BOTH,
    ),
    Guard(
        "keep",
        "a batch is stored with its horizons",
        "txstream/core/batch_metas.py",
        "        if metas.horizons:\n",
        "        if False:\n",
        f"{_TESTS}::test_metas_of_other_topologies_are_what_they_were",
        mutant="HorizonsLiveInTheProcess",
        does="A replay by the next leader, and the batches after it, do not know what was called late.",
        hunts=_BOTH,
    ),
    Guard(
        "keep",
        "a batch of dead letters has a horizon",
        "txstream/engine/loop/planning.py",
        "BatchMetas(carried=plan.last, horizons=horizons).retrying(letters)",
        "BatchMetas(carried=plan.last).retrying(letters)",
        f"{_TESTS}::test_a_retried_late_record_stays_dead_in_its_one_row[opaque]",
        mutant="ARetryKnowsNoHorizon",
        does="A late record that is retried counts in a row that was removed.",
        hunts=_BOTH,
    ),
    Guard(
        "keep",
        "a late record does not count",
        _RETENTION,
        "return late if pc.any(late).as_py() else None",
        "return None",
        f"{_TESTS}::test_what_expires_is_removed_and_what_is_late_is_a_dead_letter[opaque-driver]",
        mutant="ALateRecordCounts",
        does="A record for a row that was removed makes it anew.",
        hunts=_BOTH,
    ),
    Guard(
        "keep",
        "the driver looks for late rows, too",
        sources.COMMIT,
        "            if late_rows(column, horizon) is not None:\n",
        "            if False:\n",
        f"{_TESTS}::test_a_late_row_that_a_bolt_lets_pass_is_refused_before_the_commit",
    ),
    Guard(
        "keep",
        "a commit removes what lies before the horizon of the batch before",
        "txstream/engine/loop/commit_phase.py",
        "            batches.coordinator.committed_metas().horizons,\n",
        "            emit.metas.horizons,\n",
        f"{_TESTS}::test_what_expires_is_removed_and_what_is_late_is_a_dead_letter[opaque-driver]",
        mutant="ACommitRemovesWhatItCallsLate",
        does="An attempt that is undone has removed rows that are not late for its replay.",
        hunts=_BOTH,
    ),
    Guard(
        "keep",
        "a commit removes nothing else",
        sources.PROTOCOL,
        "here.remove_expired(spec, horizon, ",
        "here.remove_expired(spec, horizon + 7, ",
        _EXPIRED,
        promise="expired-rows-are-removed",
        mutant="RowsAreRemovedTooEarly",
        does="Rows are removed by another time than the one that is stored.",
        hunts=_BOTH,
    ),
    Guard(
        "keep",
        "a commit removes what has expired",
        sources.PROTOCOL,
        "        self._remove_expired(here, commit, keys)\n",
        "        pass\n",
        _EXPIRED,
        promise="expired-rows-are-removed",
        mutant="NothingIsRemoved",
        does="Expired rows stay.",
        hunts=_BOTH,
    ),
)
