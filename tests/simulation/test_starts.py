"""Histories of a topology that begins at the end of its log: what was ever planned is counted, once.

Nobody can foretell where such a topology begins: what becomes visible before its first places are stored may
be left out. What a batch was ever to read must not be. The truth is a plain sum over the rows from there on.
"""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.histories import MutableWorld, simulate
from simulation.releases import ROWS
from txstream.core.semantics import Semantics
from txstream.plugins.proof.simulation.world import FAULTS

OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL
SEEDS = 15

# Most of what can go wrong with a beginning happens early in a history.
EARLY = {**FAULTS, "crash": 0.05}


def begins_of(world: MutableWorld) -> dict[str, int]:
    """Return where each partition begins, as the ledger has it."""
    ledger = world.drivers[-1].targets[0].database.batches(world.topology_id)
    return world.log.begins([world.codec.decode(row.metas, f"txid {row.txid}") for row in ledger])


def counts(begins: dict[str, int]) -> dict[str, int]:
    return dict(Counter(word for name, begin in begins.items() for word, _ in ROWS[name][begin:]))


@pytest.mark.soak
@pytest.mark.parametrize("semantics", [OPAQUE, TRANSACTIONAL])
@pytest.mark.parametrize("databases", [1, 2])
def test_a_topology_that_begins_at_the_end_is_exact_from_there(semantics: Semantics, databases: int) -> None:
    moved = crashed = 0
    for seed in range(SEEDS):
        world = simulate(seed, semantics, databases, faults=EARLY, at_end=True)
        begins = begins_of(world)
        moved += any(begins.values())
        crashed += bool(world.crashes)
        for table, rows in world.tables().items():
            assert {word: n for (word,), (n, *_) in rows.items()} == counts(begins), f"seed {seed}, {table}"
    assert min(moved, crashed) > SEEDS // 2, "these histories show nothing"
