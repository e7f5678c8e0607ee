"""A topology's progress as commands read it: see `txstream.inspect.plain`."""

from __future__ import annotations

from txstream.inspect.plain import PlainCodec, positions, read_progress

__all__ = ["PlainCodec", "positions", "read_progress"]
