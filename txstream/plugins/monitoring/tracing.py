"""One OpenTelemetry span per attempt of a batch, with its phases as children and a link to the one before.

Invariants. Spans are made when an attempt has ended, from moments that were only noted before, so that a
batch waits for none. Without `opentelemetry-api` there are none; without a configured exporter the API does
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from txstream.core.transaction import TransactionAttempt, Txid, epoch_of
from txstream.engine.loop.open_batches import Watcher

if TYPE_CHECKING:
    from txstream.core.coordinator import EmitBatch
    from txstream.engine.batch.runner_contract import BatchResult
    from txstream.engine.loop.report import BatchTiming


def tracing_watcher(topology: str) -> Watcher | None:
    """Return the watcher that makes spans, or None without `opentelemetry-api`."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return BatchSpans(topology, trace.get_tracer("txstream"))


@dataclass
class _Noted:
    """When the phases of an open attempt began, in nanoseconds since 1970, oldest first."""

    attempt: TransactionAttempt
    began: int
    phases: list[tuple[str, int]] = field(default_factory=list)
    error: BaseException | None = None


class BatchSpans(Watcher):
    """See the module. `tracer` is OpenTelemetry's."""

    def __init__(self, topology: str, tracer: Any, now: Callable[[], int] = time.time_ns) -> None:
        self._topology = topology
        self._tracer = tracer
        self._now = now
        self._open: dict[Txid, _Noted] = {}
        # The span contexts of failed and dropped attempts, until their txid is committed.
        self._before: dict[Txid, Any] = {}

    def emitting(self, emit: EmitBatch[Any]) -> None:
        now = self._now()
        self._open[emit.attempt.txid] = _Noted(emit.attempt, now, [("process", now)])

    def processed(self, attempt: TransactionAttempt, result: BatchResult) -> None:
        self._begins("wait", attempt)

    def committing(self, attempt: TransactionAttempt) -> None:
        self._begins("commit", attempt)

    def committed(self, attempt: TransactionAttempt) -> None:
        self._begins("advance", attempt)

    def failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        noted = self._open.get(attempt.txid)
        if noted is not None and noted.attempt == attempt:
            noted.error = error

    def dropped(self, attempt: TransactionAttempt) -> None:
        noted = self._open.pop(attempt.txid, None)
        if noted is not None:
            outcome = "dropped" if noted.error is None else "failed"
            self._before[attempt.txid] = self._end(noted, outcome)

    def advanced(self, timing: BatchTiming) -> None:
        noted = self._open.pop(timing.txid, None)
        if noted is not None:
            planned = [("plan", timing.plan_seconds), ("persist", timing.persist_seconds)]
            for phase, seconds in reversed(planned if timing.txid not in self._before else []):
                noted.began -= round(seconds * 1e9)
                if seconds:
                    noted.phases.insert(0, (phase, noted.began))
            self._end(noted, "committed")
        self._before.pop(timing.txid, None)

    def _begins(self, phase: str, attempt: TransactionAttempt) -> None:
        noted = self._open.get(attempt.txid)
        if noted is not None and noted.attempt == attempt:
            noted.phases.append((phase, self._now()))

    def _end(self, noted: _Noted, outcome: str) -> Any:
        """Make the attempt's span and its children, and return its context."""
        from opentelemetry import trace

        attempt, ended = noted.attempt, self._now()
        before = self._before.get(attempt.txid)
        span = self._tracer.start_span(
            "batch",
            context=trace.set_span_in_context(trace.INVALID_SPAN),
            links=[] if before is None else [trace.Link(before)],
            start_time=noted.began,
            attributes={
                "txstream.topology": self._topology,
                "txstream.txid": attempt.txid,
                "txstream.attempt": attempt.attempt,
                "txstream.epoch": epoch_of(attempt.attempt),
                "txstream.outcome": outcome,
            },
        )
        context = trace.set_span_in_context(span)
        ends = [began for _, began in noted.phases[1:]] + [ended]
        for (phase, began), end in zip(noted.phases, ends, strict=True):
            self._tracer.start_span(phase, context=context, start_time=began).end(end)
        if noted.error is not None:
            # The class alone: a message of user code may hold data.
            span.set_status(trace.Status(trace.StatusCode.ERROR, type(noted.error).__name__))
        span.end(ended)
        return span.get_span_context()
