"""Results that need not be computed again in every history: what bolts make of a range of rows, and what
follows.

Invariant: what is kept here is the same in every history. Bolts are not trusted to be deterministic: now and
then they compute a result again, and it is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from txstream.engine.batch.runner_contract import BatchResult
from txstream.engine.commit.committer import BatchCommitter, StateDeltas
from txstream.plugins.proof.simulation.determinism import NotDeterministicError

T = TypeVar("T")

_FIRST_AGAIN = 3
"""At this use of a result bolts compute it again, and then after eight times as many uses each time. Anything
that bolts keep between batches shows early, and in a long run the repeats cost nothing."""
_LESS_OFTEN = 8
_MOST = 20_000


class Memo:
    """Values computed from objects that nobody changes. It holds the objects, so that no other gets their
    id."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Sequence[Any], Any]] = {}

    def of(self, what: Hashable, objects: Sequence[Any], make: Callable[[], T]) -> T:
        key = (what, *map(id, objects))
        found = self._known.get(key)
        if found is None:
            if len(self._known) > _MOST:
                self._known.clear()
            found = self._known[key] = objects, make()
        value: T = found[1]
        return value


@dataclass
class _Result:
    result: BatchResult
    content: Any
    uses: int = 1
    again_at: int = _FIRST_AGAIN


class Results:
    """The results that bolts have made of ranges of rows."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Result] = {}

    def get(self, key: Hashable) -> BatchResult | None:
        """Return a result, or None when bolts must compute it, for the first time or again."""
        known = self._known.get(key)
        if known is None or known.uses == known.again_at:
            return None
        known.uses += 1
        return known.result

    def put(self, key: Hashable, result: BatchResult, handed_on: Sequence[Any]) -> BatchResult:
        """Keep a result that bolts computed. Returns the result known before, or this one if there was none.

        What was derived from the earlier result is known too, so that one is preferred. `handed_on` is what
        the commit phase gets. Raises NotDeterministicError when the two differ.
        """
        content = _content(result), handed_on
        known = self._known.get(key)
        if known is None:
            if len(self._known) > _MOST:
                self._known.clear()
            self._known[key] = _Result(result, content)
            return result
        if known.content != content:
            raise NotDeterministicError(
                f"bolts gave other tuples for the same rows: {_difference(known.content, content)}; what "
                f"they emit may depend on the batch alone, not on chance, time or what they keep between "
                f"batches"
            )
        known.uses += 1
        known.again_at *= _LESS_OFTEN
        return known.result


def committer_with(memo: Memo) -> type[BatchCommitter]:
    """Return a BatchCommitter class that merges the deltas of each result only once."""

    class Remembering(BatchCommitter):
        def prepare(self, result: BatchResult, *, in_commit: bool = False) -> dict[str, StateDeltas]:
            if in_commit:
                return super().prepare(result, in_commit=True)
            return memo.of("merged", [result.deltas], lambda: BatchCommitter.prepare(self, result))

    return Remembering


def _content(result: BatchResult) -> Mapping[str, list[Any]]:
    """Return the deltas by component, sorted, because their order does not matter."""
    return {component: sorted(_rows(tables), key=repr) for component, tables in result.deltas.items()}


def _rows(tables: Sequence[pa.Table]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]


def _difference(before: Any, now: Any) -> str:
    for component in before[0].keys() | now[0].keys():
        one, other = before[0].get(component), now[0].get(component)
        if one != other:
            return f"the deltas of {component!r} were {one!r:.300} and are {other!r:.300} now"
    return "the tuples for its committers differ"
