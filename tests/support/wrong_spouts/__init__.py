"""Sources that each break one promise of the conformance suite, most of them by a common mistake.

Each is a class of tests/support/line_source.py with one thing changed. `WRONG` lists them all by promise: the
first one of a promise breaks that promise alone, the others may break more.
"""

from __future__ import annotations

from support.wrong_spouts import outages, planning, reading, sources
from support.wrong_spouts.registry import WRONG

__all__ = ["WRONG", "outages", "planning", "reading", "sources"]
