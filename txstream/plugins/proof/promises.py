"""What the conformance suites share: promises, the trial that checks one, and the report of what broke.

Invariants of a trial:

- The thing under test is called on the suite's own thread, never on the caller's, so a call that does not
  return within its deadline ends only its own check.
- An error that it raises, or a call that misses its deadline, breaks the promise under check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from txstream.core.errors import TxstreamError, UsageError
from txstream.plugins.proof.call_thread import CallThread, NoAnswerError

Answer = TypeVar("Answer")


class NotApplicableError(TxstreamError):
    """A check needs something that the thing under test does not have. The report says what."""


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """A promise that was not kept. `name` is the check's name, `rule` the sentence that was broken."""

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
    """At least one promise is broken. `broken` has an entry for each."""

    def __init__(self, *broken: BrokenPromise) -> None:
        super().__init__("\n".join(str(promise) for promise in broken))
        self.broken = broken


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The promises that are kept, and those that do not apply, each with the reason."""

    kept: tuple[str, ...]
    not_applicable: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"kept            {name}" for name in self.kept]
        lines += [f"not applicable  {name}: {reason}" for name, reason in self.not_applicable]
        return "\n".join(lines)


class Trial:
    """One check of one thing under test: the tools that checks are written with."""

    error: ClassVar[type[ConformanceError]]

    def __init__(self, check: Check[Any], deadline_seconds: float) -> None:
        self.check = check
        self.deadline_seconds = deadline_seconds
        self._thread = CallThread()

    def close(self) -> None:
        self._thread.close()

    def ask(self, what: str, call: Callable[..., Answer], *arguments: Any, **options: Any) -> Answer:
        """Return the answer of a call. An exception or a missed deadline breaks the promise."""
        try:
            return self._thread.call(lambda: call(*arguments, **options), self.deadline_seconds)
        except (ConformanceError, NotApplicableError):
            raise
        except NoAnswerError as error:
            self.fail(f"an answer when {what}", f"none within {self.deadline_seconds:g} s", cause=error)
        except Exception as error:  # noqa: BLE001 - every failure of the thing under test is reported
            self.fail(f"an answer when {what}", described(error), cause=error)

    def outcome(
        self, what: str, call: Callable[..., Answer], *arguments: Any, **options: Any
    ) -> Answer | Exception:
        """Return the answer of a call or the exception that it raises. Fail if it misses the deadline."""
        try:
            return self._thread.call(lambda: call(*arguments, **options), self.deadline_seconds)
        except ConformanceError:
            raise
        except NoAnswerError as error:
            self.fail(
                f"an answer or an error when {what}",
                f"neither within {self.deadline_seconds:g} s (deadline_seconds)",
                cause=error,
            )
        except Exception as error:  # noqa: BLE001 - handed to the caller
            return error

    def fail(self, expected: str, found: str, *, cause: BaseException | None = None) -> NoReturn:
        check = self.check
        raise self.error(BrokenPromise(check.name, check.rule, expected, found, check.hint)) from cause


T = TypeVar("T", bound=Trial)


@dataclass(frozen=True, slots=True)
class Check(Generic[T]):
    """One promise and the function that checks it. `str()` is its name, so that it can be a test's id."""

    name: str
    rule: str
    hint: str
    function: Callable[[T], None]

    def __str__(self) -> str:
        return self.name

    def conclude(self, trial: T) -> str | None:
        """Check the promise and close the trial. Returns why it does not apply, None when it is kept. Raises
        a ConformanceError when it is broken."""
        try:
            self.function(trial)
        except NotApplicableError as reason:
            return str(reason)
        finally:
            trial.close()
        return None


C = TypeVar("C", bound=Check[Any])
R = TypeVar("R", bound=ConformanceReport)


class Promises(list[C]):
    """The checks of one module, in the order in which they are defined."""

    def __init__(self, kind: Callable[[str, str, str, Callable[[Any], None]], C]) -> None:
        super().__init__()
        self._kind = kind

    def promise(self, name: str, rule: str, hint: str) -> Callable[[Callable[[Any], None]], C]:
        """Make a check of the decorated function, which checks one promise."""

        def enter(function: Callable[[Any], None]) -> C:
            self.append(self._kind(name, rule, hint, function))
            return self[-1]

        return enter


def run_checks(
    checks: Sequence[C],
    only: Iterable[str] | None,
    run: Callable[[C], str | None],
    *,
    error: type[ConformanceError],
    report: type[R],
) -> R:
    """Run all checks, or those that `only` names. `run` returns why one does not apply, None when it is kept.

    Raises an `error` that lists every broken promise, UsageError for an unknown name, and what `run` raises.
    """
    names = {check.name for check in checks}
    chosen = names if only is None else set(only)
    if not chosen <= names:
        every = ", ".join(check.name for check in checks)
        raise UsageError(f"there is no check {min(chosen - names)!r}; the checks are {every}")
    kept: list[str] = []
    not_applicable: list[tuple[str, str]] = []
    broken: list[BrokenPromise] = []
    for check in (check for check in checks if check.name in chosen):
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


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
