"""Mistakes about savepoints, rewind and swap: of which txid they are, and who may still write."""

from __future__ import annotations

from guards.guard import Guard
from guards.hunt import OPAQUE, TRANSACTIONAL, RewindHunt
from guards.patch import Patch
from txstream.core.errors import ProgressMismatchError
from txstream.plugins.proof.simulation.world import WrongResultError

_ROOM = "txstream/plugins/change"
_REWIND = "tests/plugins/change/test_rewind.py"
_SAVEPOINT = "tests/plugins/change/test_savepoints.py"
_SWAP = "tests/plugins/change/test_swap.py"
_AS_BEFORE = f"{_REWIND}::test_the_states_are_as_they_were_and_the_records_since_are_read_again[False-opaque]"
_DIES = (
    f"{_REWIND}::test_a_rewind_that_dies_is_finished_or_not_begun_at_the_next_start"
    "[database 0 put back-opaque]"
)
_PLACES = f"{_SWAP}::test_the_forks_rows_take_the_names_and_go_back_again[opaque]"

CHANGE = (
    Guard(
        "change",
        "a rewind is the batch that would commit next",
        f"{_ROOM}/rewinding.py",
        "_put_back_everywhere(states, target, progress.current, fence)",
        "_put_back_everywhere(states, target, target.last, fence)",
        _AS_BEFORE,
        mutant="ATxidIsUsedAgain",
        does="A rewind writes its ledger row as the last txid once more.",
        hunts=(RewindHunt(ProgressMismatchError, OPAQUE),),
    ),
    Guard(
        "change",
        "the places of a savepoint are those of its own batch",
        f"{_ROOM}/savepoints.py",
        "        row.metas,\n",
        "        database.batch(row.topology, row.txid - 1).metas,\n",
        _AS_BEFORE,
        mutant="PlacesAreOffByOneBatch",
        does="A savepoint has the places of the batch before its own.",
        hunts=(RewindHunt(WrongResultError, TRANSACTIONAL),),
        # The first batch has none before it.
        instead=(
            Patch(
                f"{_ROOM}/savepoints.py",
                "        row.metas,\n",
                "        (database.batch(row.topology, row.txid - 1) or row).metas,\n",
            ),
        ),
    ),
    Guard(
        "change",
        "a savepoint has all databases as of one txid",
        f"{_ROOM}/savepoints.py",
        "    if len(txids) > 1:\n"
        '        return f"its databases have committed txid {min(txids)} to {max(txids)}"\n'
        "    (txid,) = txids\n",
        "    txid = min(txids)\n",
        f"{_SAVEPOINT}::test_there_is_no_moment_while_databases_are_apart_or_a_transactional_batch_is_half_written",
        mutant="SavepointAcrossABoundary",
        does="A savepoint has its databases as of different txids.",
        hunts=(RewindHunt(WrongResultError, OPAQUE, 2, {"savepoint": 0.2, "crash": 0.01}),),
    ),
    Guard(
        "change",
        "a rewind to a savepoint holds it",
        f"{_ROOM}/rewinding.py",
        "(part.status, part.txid) != (MADE, target.to):",
        "part.txid != target.to:",
        f"{_REWIND}::test_a_savepoint_is_dropped_before_a_rewind_to_it_begins_or_after_it_is_done",
    ),
    Guard(
        "change",
        "a savepoint is not dropped once a rewind to it has begun",
        f"{_ROOM}/savepoints.py",
        "                _refuse_while_gone_back_to(topology_id, name, databases)\n",
        "",
        f"{_REWIND}::test_a_savepoint_is_dropped_before_a_rewind_to_it_begins_or_after_it_is_done",
    ),
    Guard(
        "change",
        "each transaction of a rewind holds the fence",
        f"{_ROOM}/rewinding.py",
        "        here.hold_fence(attempt.attempt)\n",
        "",
        f"{_REWIND}::test_a_rewind_that_somebody_has_overtaken_puts_nothing_back",
        mutant="ARewindHoldsNoFence",
        does="A rewind that slept while another driver led puts rows back beneath it.",
        hunts=(RewindHunt(WrongResultError, OPAQUE, 1, {"freeze": 0.03}),),
    ),
    Guard(
        "change",
        "a start finishes a rewind that has begun",
        f"{_ROOM}/rewinding.py",
        "        _put_back_everywhere(unsettled.states, target, newest.txid, unsettled.fence)\n",
        "        pass\n",
        _DIES,
        mutant="ARewindIsLeftHalfDone",
        does="A start goes on although one of two databases was not put back.",
        hunts=(RewindHunt(WrongResultError, OPAQUE, 2, {"crash": 0.01, "rewind": 0.1}),),
    ),
    Guard(
        "change",
        "a rewind drops the plans of what was to come",
        f"{_ROOM}/rewinding.py",
        "    kept = {txid: one for txid, one in progress.batches.items() if txid < progress.current}\n",
        "    kept = dict(progress.batches)\n",
        mutant="PlansOutliveARewind",
        does="A transactional batch that was planned before the rewind is replayed behind it.",
        hunts=(RewindHunt(ProgressMismatchError, TRANSACTIONAL),),
    ),
    Guard(
        "change",
        "a rewind that has dropped plans goes on under another claim",
        f"{_ROOM}/rewinding.py",
        "        fence = prove_distinct(topology_id, states, take_over(store, states))\n        refuse",
        "        refuse",
        f"{_REWIND}::test_a_late_write_that_drops_plans_does_not_drop_the_rewind",
    ),
    Guard(
        "change",
        "a savepoint of an attempt that was undone is not gone back to",
        f"{_ROOM}/rewinding.py",
        "        if row is None or row.attempt == part.attempt:\n",
        "        if True:\n",
        f"{_REWIND}::test_a_savepoint_of_an_attempt_that_was_undone_is_refused",
    ),
    Guard(
        "change",
        "a swap is the batch that would commit next",
        f"{_ROOM}/swapping.py",
        "_swap_everywhere(states, planned, progress.current, attempt, mine.identity)",
        "_swap_everywhere(states, planned, planned.last, attempt, mine.identity)",
        _PLACES,
    ),
    Guard(
        "change",
        "a swap raises the fork's fence, too",
        f"{_ROOM}/swapping.py",
        "    states, attempt = _lead(theirs, databases)\n",
        "    states = [one.of(fork, theirs.identity.uuid, theirs.identity.semantics) for one in databases]\n"
        "    attempt = states[0].read_fence().attempt\n",
        f"{_SWAP}::test_the_forks_driver_of_before_commits_nothing_once_the_swap_has_looked",
    ),
    Guard(
        "change",
        "each transaction of a swap holds the fork's fence",
        f"{_ROOM}/swapping.py",
        "            fence.require(connection, database.sessions, theirs, planned.fork_attempt)\n",
        "            pass\n",
        f"{_SWAP}::test_a_fork_that_another_driver_leads_meanwhile_is_not_swapped",
    ),
    Guard(
        "change",
        "a fork has read all that the topology has",
        f"{_ROOM}/swap_plan.py",
        "        elif there < place:\n",
        "        elif False:\n",
        f"{_SWAP}::test_a_fork_that_is_behind_is_refused_and_one_that_is_ahead_is_not",
    ),
    Guard(
        "change",
        "a fork's rows get the topology's txid",
        f"{_ROOM}/ownership.py",
        "{table.c[TXID_COLUMN]: txid, **made}",
        "{table.c[TXID_COLUMN]: table.c[TXID_COLUMN], **made}",
        _PLACES,
    ),
)
