"""The guards of exactly-once, each with the test that fails without it. `check_guards.py` proves every entry.

A guard is a piece of code. Replacing `old` with `new` in `file` removes it; then `test` must fail. The tables
in docs/guarantees.md and docs/semantics.md are made from these.

Each section of docs/guarantees.md has a file here, and the holes of docs/semantics.md have one.
"""

from __future__ import annotations

from guards.change import CHANGE
from guards.commit import COMMIT
from guards.dead_letters import DEAD_LETTERS
from guards.delta import DELTA
from guards.guard import Guard as Guard
from guards.holes import HOLES
from guards.hunt import (
    ChangeHunt as ChangeHunt,
    Hunt as Hunt,
    KeepHunt as KeepHunt,
    LetterHunt as LetterHunt,
    RewindHunt as RewindHunt,
)
from guards.keep import KEEP
from guards.locks import LOCKS
from guards.lookups import LOOKUPS
from guards.results import RESULTS
from guards.simulated import SIMULATED
from guards.start import START
from guards.values import VALUE_RULES
from guards.windows import WINDOWS

GUARDS = (
    *(*VALUE_RULES, *START, *COMMIT, *LOCKS, *HOLES, *SIMULATED),
    *(*DEAD_LETTERS, *KEEP, *WINDOWS, *LOOKUPS, *CHANGE, *DELTA, *RESULTS),
)
