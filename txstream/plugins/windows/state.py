"""`WindowState`: a table of windows, one row for each key and window, which a batch closes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal, get_args

import pyarrow as pa

from txstream.api.retention import keep_seconds
from txstream.api.schema import parse_schema
from txstream.api.state import SqlState
from txstream.core.errors import TopologyError
from txstream.core.semantics import Semantics
from txstream.plugins.windows.times import SECOND, Hopping, Tumbling, moment
from txstream.plugins.windows.watermark import WindowKeeper

Late = Literal["dead-letter", "amend"]
START, END, CLOSED = "window_start", "window_end", "closed"
OWN = parse_schema(f"{START} timestamp, {END} timestamp, {CLOSED} boolean")


@dataclass(frozen=True)
class WindowState(SqlState):
    """A table with a row for each key and window of time:
    `WindowState("clicks", key="page string", value="n bigint", window=Tumbling("1h", time="at"),
    late="dead-letter")`. The window may also be the last column of the key: `key=["page string",
    Tumbling("1h", time="at")]`.

    Beside its own columns it has `window_start`, the last column of its key, `window_end`, and `closed`: no
    record that is in time will change the row any more. `late` says what becomes of records that are not:
    "dead-letter" sets them aside, which the topology must ask for (`dead_letters=DeadLetters()`); "amend"
    counts them, so that closed rows change. There is no default. `keep` removes windows whose end is that
    long before the watermark; they are closed, and what comes for them is a dead letter. The other arguments
    are those of `SqlState`.
    """

    key: str | pa.Schema | Sequence[str | Tumbling]
    window: Tumbling | Hopping | None = None
    late: Late | None = None

    marks: ClassVar[tuple[str, str]] = (CLOSED, END)

    def __post_init__(self) -> None:
        if isinstance(self.key, (list, tuple)) and self.window is None:  # the window is its last column
            object.__setattr__(self, "window", self.key[-1] if self.key else None)
            object.__setattr__(self, "key", ", ".join(map(str, self.key[:-1])))
        if not isinstance(self.window, Tumbling):
            raise TopologyError(
                f"state table {self.table!r}: window is {self.window!r}; write "
                f"window=Tumbling('1h', time='at') or window=Hopping('1h', every='15m', time='at')"
            )
        if self.late not in get_args(Late):
            raise TopologyError(
                f"state table {self.table!r}: late is {self.late!r}; say what becomes of records that come "
                f"after their window has closed: late='dead-letter' sets them aside, late='amend' counts "
                f"them, so that closed rows change"
            )
        if self.keep is not None:
            object.__setattr__(self, "keep_on", END)
        super().__post_init__()

    def _keys(self) -> pa.Schema:
        return super()._keys().append(OWN.field(START))

    def _values(self) -> pa.Schema:
        return pa.schema([*super()._values(), OWN.field(END), OWN.field(CLOSED)])

    def _times(self) -> tuple[pa.Schema, str]:
        return pa.schema([OWN.field(END)]), ""

    @functools.cached_property
    def keep_seconds(self) -> int | None:
        """None: the watermark decides, not the clock."""
        return None

    def declaration(self, semantics: Semantics) -> dict[str, Any]:
        assert self.window is not None
        return {**super().declaration(semantics), "window": self.window.declaration()}

    def horizon_keeper(self) -> WindowKeeper:
        assert self.window is not None
        return WindowKeeper(self.window.grace_micros)

    def marks_until(self, horizon: Any) -> datetime | None:
        until = None if horizon is None else horizon["watermark"]
        return None if until is None else moment(until)

    def keeps_from(self, horizon: Any) -> int | None:
        """Windows that ended before this are removed. All of them are closed, and everything that comes for
        one is late."""
        until = None if horizon is None else horizon["late"]
        if until is None or self.keep is None:
            return None
        return int(until // SECOND - keep_seconds(self.table, self.keep))

    @property
    def sets_aside(self) -> str | None:
        return f"late={self.late!r}" if self.late == "dead-letter" else super().sets_aside
