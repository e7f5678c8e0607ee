"""Mistakes about lookups: what a tuple sees of its own batch."""

from __future__ import annotations

from guards.guard import Guard

_BOLT = "bolts/lookup.py"
_TESTS = "tests/unit/test_lookups.py"

LOOKUPS = (
    Guard(
        "lookups",
        "a tuple sees what its own batch has for the table",
        _BOLT,
        "        fold.add_partial(self.table.deltas())\n",
        "",
        f"{_TESTS}::test_a_tuple_sees_the_batches_before_and_its_own[opaque-auto-False]",
    ),
)
