"""Batches for routers, and what each task got of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import settings, strategies as st

from txstream.api.groupings import Grouping, GroupingKind
from txstream.engine.batch.routing import Router, open_router

KEYED = (GroupingKind.FIELDS, GroupingKind.PARTIAL_KEY)
UNTIMED = settings(deadline=None)  # a busy machine is no failure


def grouping(kind: GroupingKind, *fields: str) -> Grouping:
    return Grouping(kind, "split", "default", fields or (("word",) if kind in KEYED else ()))


def opened(kind: GroupingKind, tasks: int, start: int = 0) -> Router:
    return open_router(grouping(kind), tasks, "count", start)


def numbered(columns: dict[str, Any], first: int = 0) -> pa.RecordBatch:
    """Return a batch of these columns and of `row`, which tells its rows apart."""
    batch = pa.RecordBatch.from_pydict(columns)
    return batch.append_column("row", pa.array(range(first, first + batch.num_rows), pa.int64()))


def words(texts: Sequence[str | None], first: int = 0) -> pa.RecordBatch:
    return numbered({"word": pa.array(texts, pa.string())}, first)


def pieces(texts: Sequence[str | None], cuts: Iterable[int]) -> list[pa.RecordBatch]:
    """Return the same tuples, cut into several batches."""
    ends = sorted({*(min(cut, len(texts)) for cut in cuts), len(texts)})
    return [words(texts[start:end], start) for start, end in zip([0, *ends], ends, strict=False)]


def sent(
    router: Router, batches: Iterable[pa.RecordBatch], direct_task: int | None = None
) -> dict[int, list[int]]:
    """Return the rows that each task got, in the order in which they came."""
    got: dict[int, list[int]] = {}
    for batch in batches:
        for task, part in router.route(batch, direct_task):
            assert part.schema == batch.schema
            got.setdefault(task, []).extend(part.column("row").to_pylist())
    return got


def totals(got: dict[int, list[int]], tasks: int) -> list[int]:
    assert set(got) <= set(range(tasks))
    return [len(got.get(task, [])) for task in range(tasks)]


TEXTS = st.lists(st.sampled_from(["the", "cat", "dog", "end", "", "größe", None]), max_size=60)
CUTS = st.lists(st.integers(0, 60), max_size=8)
