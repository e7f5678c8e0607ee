"""A list of cases as one test: `each` reads like `pytest.mark.parametrize`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

Test = Callable[..., None]


def each(
    names: str | Sequence[str],
    values: Iterable[Any],
    *,
    ids: Sequence[str] | Callable[[Any], object] | None = None,
) -> Callable[[Test], Test]:
    """Call a test with all `values`, one after the other, as one case that tells of all that fail.

    For lists whose items need nothing fresh of pytest: fixtures are the same for all items. A case of its own
    for each item would cost more than most items do.
    """
    own = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    items = [value if isinstance(value, ParameterSet) else _item(value, len(own)) for value in values]
    if not items or any(item.marks for item in items):
        raise ValueError(f"each of {', '.join(own)}: there must be items, and none may have marks")

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def all_of_them(*arguments: Any, **fixtures: Any) -> None:
            failures: list[BaseException] = []
            skipped: BaseException | None = None
            for number, item in enumerate(items):
                try:
                    test(*arguments, **fixtures, **dict(zip(own, item.values, strict=True)))
                except pytest.skip.Exception as skip:
                    skipped = skip
                except (Exception, pytest.fail.Exception, BaseExceptionGroup) as failure:  # noqa: BLE001 - raised below
                    failure.add_note(f"with {', '.join(own)} = {_named(item, number, ids)}")
                    failures.append(failure)
                    if "Timeout" in str(failure) and isinstance(failure, pytest.fail.Exception):
                        break  # the time limit is the case's; the other items would have none
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(items)} failed", failures)
            if skipped is not None:
                raise skipped

        signature = inspect.signature(test)
        kept = [one for name, one in signature.parameters.items() if name not in own]
        all_of_them.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # pytest reads it
        return all_of_them

    return decorate


def _item(value: Any, names: int) -> ParameterSet:
    return ParameterSet.param(*(value if names > 1 else (value,)))


def _named(item: ParameterSet, number: int, ids: Sequence[str] | Callable[[Any], object] | None) -> str:
    if callable(ids):
        return ", ".join(str(ids(value)) for value in item.values)
    if ids is not None:
        return ids[number]
    return str(item.id) if item.id else ", ".join(map(repr, item.values))
