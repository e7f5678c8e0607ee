"""State stores that are each wrong in one way, by the promise that they break."""

from __future__ import annotations

from support.wrong_states import commits, fences, joins, options, values
from support.wrong_states.registry import WRONG

__all__ = ["WRONG", "commits", "fences", "joins", "options", "values"]
