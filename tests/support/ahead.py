"""Work that several tests of a module wait for, begun at once and awaited by each.

A test of processes mostly waits, for one to start or for a session to end. Side by side, such tests take
little longer than the longest of them. Each is still selected, and fails, by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Self, TypeVar

import pytest

Result = TypeVar("Result")


class Ahead(Generic[Result]):
    """Work by the name of the test that wants it, `at_once` pieces at a time; a context manager.

    Only the work of selected tests is done, in the order given. `ahead[name]` waits for a piece of work and
    returns its result or raises its error. Pieces must not share anything that they write to.
    """

    def __init__(
        self, request: pytest.FixtureRequest, works: Mapping[str, Callable[[], Result]], *, at_once: int
    ) -> None:
        here = request.path
        selected = {item.name for item in request.session.items if item.path == here}
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="ahead")
        self._begun: dict[str, Future[Result]] = {
            name: self._pool.submit(work) for name, work in works.items() if name in selected
        }

    def __getitem__(self, name: str) -> Result:
        return self._begun[name].result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
