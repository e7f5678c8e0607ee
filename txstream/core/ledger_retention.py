"""How long the ledger keeps a batch: by age, by number, or forever."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from txstream.core.errors import UsageError

_DAY = 24 * 3600.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": _DAY}
_LIMIT = re.compile(r"(\d+)([smhd]?)")
_EXAMPLES = (
    "--keep-ledger 7d, --keep-ledger 100000, --keep-ledger 7d,100000 or --keep-ledger all (units: s, m, h, d)"
)


@dataclass(frozen=True, slots=True)
class Keep:
    """A row of the ledger may be deleted once it is older than `seconds` or once `batches` newer rows exist,
    whichever comes first. None is no limit. The last two committed batches always stay.

    Raises UsageError for a limit that is not positive.
    """

    seconds: float | None = 7 * _DAY
    batches: int | None = 100_000

    def __post_init__(self) -> None:
        if self.seconds is not None and not 0 < self.seconds < timedelta.max.total_seconds():
            raise UsageError(f"the ledger cannot keep {self.seconds!r} seconds; write {_EXAMPLES}")
        if self.batches is not None and not 0 < self.batches < math.inf:
            raise UsageError(f"the ledger cannot keep {self.batches!r} batches; write {_EXAMPLES}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `7d`, `100000`, both with a comma between them, or `all`. A limit that is missing is none.

        Raises UsageError that shows examples.
        """
        if text.strip() == "all":
            return cls(None, None)
        seconds: float | None = None
        batches: int | None = None
        for part in text.split(","):
            found = _LIMIT.fullmatch(part.strip().replace("_", ""))
            if found is None:
                raise UsageError(f"the ledger cannot keep {text!r}: {part!r} is no limit; write {_EXAMPLES}")
            number, unit = int(found[1]), found[2]
            if (seconds if unit else batches) is not None:
                kind = "ages" if unit else "numbers"
                raise UsageError(f"the ledger cannot keep {text!r}: it has two {kind}; write {_EXAMPLES}")
            if unit:
                seconds = number * _UNITS[unit]
            else:
                batches = number
        return cls(seconds, batches)

    @property
    def everything(self) -> bool:
        """Whether nothing is ever deleted."""
        return self.seconds is None and self.batches is None

    def __str__(self) -> str:
        limits = [] if self.seconds is None else [_age(self.seconds)]
        limits += [] if self.batches is None else [str(self.batches)]
        return ",".join(limits) or "all"


def seconds_of(text: str) -> float | None:
    """Return an age such as `36h` in seconds, or None if the text is not an age."""
    found = _LIMIT.fullmatch(text.strip().replace("_", ""))
    return int(found[1]) * _UNITS[found[2]] if found is not None and found[2] else None


def _age(seconds: float) -> str:
    for unit in ("d", "h", "m"):
        if seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:g}{unit}"
    return f"{seconds:g}s"
