"""The guards of exactly-once, each with the test that fails without it. `check_guards.py` proves every line.

A guard is a piece of code. To take it away, `old` becomes `new` in `file`; then `test` must fail. The table
is also what docs/guarantees.md and docs/semantics.md show.

There is a file for each section of docs/guarantees.md, and one for the holes of docs/semantics.md.
"""

from __future__ import annotations

from guards.commit import COMMIT
from guards.guard import Guard as Guard
from guards.holes import HOLES
from guards.locks import LOCKS
from guards.start import START
from guards.values import VALUE_RULES

GUARDS = (*VALUE_RULES, *START, *COMMIT, *LOCKS, *HOLES)
