"""How a broken promise is told: which, what was expected, what was found, where to look."""

from __future__ import annotations

from dataclasses import dataclass

from txstream.api.errors import TxstreamError


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """`name` is the check's, `rule` the sentence that the source did not keep to."""

    name: str
    rule: str
    expected: str
    found: str
    hint: str

    def __str__(self) -> str:
        return (
            f"promise {self.name!r} is broken: {self.rule}\n"
            f"  expected: {self.expected}\n"
            f"  found:    {self.found}\n"
            f"  hint:     {self.hint}"
        )


class SpoutConformanceError(TxstreamError):
    """A source does not do what a topology relies on; `broken` has one entry for each broken promise."""

    def __init__(self, *broken: BrokenPromise) -> None:
        super().__init__("\n".join(str(promise) for promise in broken))
        self.broken = broken
