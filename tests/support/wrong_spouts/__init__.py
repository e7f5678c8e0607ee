"""Sources that each break one promise of the conformance suite, most of them by a mistake easily made.

Each is a class of tests/support/line_source.py with one thing changed. `WRONG` has them all, by promise: the
first breaks that promise alone, the others may break more.
"""

from __future__ import annotations

from support.wrong_spouts import outages, planning, reading, sources
from support.wrong_spouts.registry import WRONG

__all__ = ["WRONG", "outages", "planning", "reading", "sources"]
