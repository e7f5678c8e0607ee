"""Mistakes about savepoints, rewind and swap: of which txid they are, and who may still write."""

from __future__ import annotations

from guards.guard import Guard

_ROOM = "txstream/plugins/change"
_REWIND = "tests/plugins/change/test_rewind.py"
_SAVEPOINT = "tests/plugins/change/test_savepoints.py"
_SWAP = "tests/plugins/change/test_swap.py"
_AS_BEFORE = f"{_REWIND}::test_the_states_are_as_they_were_and_the_records_since_are_read_again[False-opaque]"
_PLACES = f"{_SWAP}::test_the_forks_rows_take_the_names_and_go_back_again[opaque]"

CHANGE = (
    Guard(
        "change",
        "a rewind is the batch that would commit next",
        f"{_ROOM}/rewinding.py",
        "_put_back_everywhere(states, target, progress.current, fence)",
        "_put_back_everywhere(states, target, target.last, fence)",
        _AS_BEFORE,
    ),
    Guard(
        "change",
        "the places of a savepoint are those of its own batch",
        f"{_ROOM}/savepoints.py",
        "        row.metas,\n",
        "        database.batch(row.topology, row.txid - 1).metas,\n",
        _AS_BEFORE,
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
