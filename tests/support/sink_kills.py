"""The large orders of a topic in another one, by a driver that dies at one step of sending them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, Literal

from kafka import KafkaProducer

from txstream.api.topology import Topology
from txstream.examples import large_orders
from txstream.plugins.outbox.sending import OutboxFollower
from txstream.spouts.kafka.letter_topic import KafkaLetterTopic
from txstream.state import StateDatabase

DIES: dict[str, tuple[type, str, bool]] = {
    "before-sending": (KafkaLetterTopic, "send_all", False),
    "produced": (KafkaProducer, "flush", False),
    "flushed": (KafkaLetterTopic, "send_all", True),
    "not-noted": (OutboxFollower, "_note", False),
    "noted": (StateDatabase, "drop_used", False),
    "dropped": (StateDatabase, "drop_used", True),
}
"""Steps: a method, before or after whose call of a given number the process is killed."""


def dying(
    method: Callable[..., Any], call: int, *, after: bool, how: signal.Signals = signal.SIGKILL
) -> Callable[..., Any]:
    calls = 0

    def dying(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            os.kill(os.getpid(), how)
        answer = method(*given, **named)
        if calls == call and after:
            os.kill(os.getpid(), how)
        return answer

    return dying


def topology(
    topic: str,
    semantics: Literal["opaque", "transactional"] = "opaque",
    driver_commit_rows: int | None = None,
    dies: str = "",
) -> Topology:
    if dies:
        step, _, call = dies.partition(":")
        owner, name, after = DIES[step]
        setattr(owner, name, dying(getattr(owner, name), int(call), after=after))
    return large_orders.topology(
        topic,
        f"{topic}-large",
        semantics=semantics,
        table=topic,
        max_records_per_partition=20,
        driver_commit_rows=driver_commit_rows,
    )
