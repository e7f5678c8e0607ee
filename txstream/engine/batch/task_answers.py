"""Puts the answers of a phase's Spark tasks together into one result.

Invariant: no result is given out before its edges have delivered what was sent (`edge_counts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from txstream.core.digests import added_up
from txstream.core.placement import TaskPlace
from txstream.core.readings import Reading, refuse_changes
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.edge_counts import EdgeCount, require_delivered
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.leaving_out import require_heard
from txstream.engine.batch.messages import PYTHON, Answer
from txstream.engine.batch.runner_contract import BatchResult, Emitted


def open_answers(attempt: TransactionAttempt, messages: Iterable[bytes]) -> list[Answer]:
    """Return the answers of Spark tasks. Raises the error of the first that failed."""
    answers = [Answer.decode(message) for message in messages]
    for answer in answers:
        if answer.failure is not None:
            raise answer.failure.to_error(attempt)
    return answers


def collect_result(
    plan: ExecutionPlan,
    attempt: TransactionAttempt,
    answers: Iterable[Answer],
    job_seconds: float,
    width: int,
    *,
    crossing: EdgeCount | None = None,
    kept: Any = None,
) -> BatchResult:
    """Put the answers of a phase together. For the commit phase, `crossing` is what was sent into it.

    Raises ShortBatchError when an edge did not deliver what was sent.
    """
    deltas: dict[str, list[pa.Table]] = {}
    emitted: list[Emitted] = []
    places: list[TaskPlace] = []
    under_way: EdgeCount = Counter(crossing or {})
    received: EdgeCount = Counter()
    sending_ns: EdgeCount = Counter()
    taking_ns: EdgeCount = Counter()
    records, read_seconds, process_seconds = 0, 0.0, 0.0
    answers = list(answers)
    written = added_up(one for answer in answers for one in answer.written.items())
    for answer in answers:
        records += answer.records
        read_seconds += answer.read_seconds
        process_seconds += answer.process_seconds
        places += answer.places
        emitted += [Emitted(*name, table) for name, table in answer.emitted.items()]
        for component, table in answer.deltas.items():
            deltas.setdefault(component, []).append(table)
        under_way.update(answer.sent)
        under_way.subtract(answer.received)
        received.update(answer.received)
        sending_ns.update(answer.sending_ns)
        taking_ns.update(answer.taking_ns)
    left_out = [one for answer in answers for one in answer.left_out]
    gaps = {partition for answer in answers for partition in answer.gaps}
    for one in left_out:
        if one.partition in gaps:  # another record may be the bad one
            raise one.failure.to_error(attempt)
    records -= sum(one.failure.component != plan.spout_id for one in left_out)
    lineages = _lineages(attempt, answers)
    # A tracked tuple that is lost leaves its own tree open. The other trees go on.
    if not plan.fed:
        later = {bolt.id for bolt in plan.bolts if bolt.in_commit} if crossing is None else set()
        require_delivered(attempt, under_way, later)
    return BatchResult(
        deltas,
        records,
        job_seconds,
        read_seconds,
        process_seconds,
        width,
        sorted(places, key=lambda place: (place.component, place.task)),
        emitted,
        +under_way,
        kept,
        sum(digest.rows for digest in written.values()),
        written,
        [answer.tracked for answer in answers if answer.tracked is not None],
        received,
        sending_ns,
        taking_ns,
        left_out=left_out,
        lineages=lineages,
        reading=_reading(answers),
    )


def _reading(answers: Iterable[Answer]) -> Reading:
    """Return what the tasks have read together. Raises InputChangedError for two schemas with one id."""
    whole = Reading()
    for answer in answers:
        refuse_changes(whole.changed(answer.reading), "two tasks of the batch decoded by different schemas")
        whole += answer.reading
    return whole


def _lineages(attempt: TransactionAttempt, answers: Sequence[Answer]) -> dict[str, str]:
    """Return the lineages of the last stage's messages. Raises ShortBatchError if those of a stage before
    were not heard as they were sent."""
    stages = {answer.stage for answer in answers}
    told = {
        stage: {
            f"{PYTHON}/{answer.sender}": answer.lineage
            for answer in answers
            if answer.stage == stage and answer.lineage
        }
        for stage in stages
    }
    for answer in answers:
        if answer.stage - 1 in stages:
            require_heard(attempt, answer.heard, told[answer.stage - 1])
    return told[max(stages)] if stages else {}
