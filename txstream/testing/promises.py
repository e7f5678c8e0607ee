"""What the conformance suites share: running checks, and telling which promises are broken, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from txstream.api.errors import TxstreamError, UsageError


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """`name` is the check's, `rule` the sentence that was not kept to."""

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


class ConformanceError(TxstreamError):
    """`broken` has one entry for each broken promise."""

    def __init__(self, *broken: BrokenPromise) -> None:
        super().__init__("\n".join(str(promise) for promise in broken))
        self.broken = broken


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The promises that are kept, and those that do not apply, with the reason."""

    kept: tuple[str, ...]
    not_applicable: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"kept            {name}" for name in self.kept]
        lines += [f"not applicable  {name}: {reason}" for name, reason in self.not_applicable]
        return "\n".join(lines)


class Check(Protocol):
    """One promise and how it is tried."""

    @property
    def name(self) -> str: ...


C = TypeVar("C", bound=Check)
R = TypeVar("R", bound=ConformanceReport)


def run_checks(
    checks: Sequence[C],
    only: Iterable[str] | None,
    run: Callable[[C], str | None],
    *,
    error: type[ConformanceError],
    report: type[R],
) -> R:
    """Run all checks, or those that `only` names. `run` answers why one does not apply, None when it is kept.

    Raises `error` that tells every broken promise, UsageError for an unknown name, and what `run` raises.
    """
    kept: list[str] = []
    not_applicable: list[tuple[str, str]] = []
    broken: list[BrokenPromise] = []
    for check in _chosen(checks, only):
        try:
            reason = run(check)
        except error as found:
            broken += found.broken
            continue
        if reason is None:
            kept.append(check.name)
        else:
            not_applicable.append((check.name, reason))
    if broken:
        raise error(*broken)
    return report(tuple(kept), tuple(not_applicable))


def _chosen(checks: Sequence[C], only: Iterable[str] | None) -> Sequence[C]:
    if only is None:
        return checks
    names = set(only)
    unknown = sorted(names - {check.name for check in checks})
    if unknown:
        raise UsageError(
            f"there is no check {unknown[0]!r}; the checks are {', '.join(check.name for check in checks)}"
        )
    return [check for check in checks if check.name in names]
