"""The large orders of a topic in another one, by a driver that dies at one step of sending them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Any, Literal

from kafka import KafkaProducer

from txstream.api.topology import Topology
from txstream.examples import large_orders
from txstream.plugins.outbox.sending import OutboxFollower
from txstream.spouts.kafka import transactional_topic
from txstream.spouts.kafka.letter_topic import KafkaLetterTopic
from txstream.state import StateDatabase

DIES: dict[str, tuple[type, str, bool]] = {
    "before-sending": (KafkaLetterTopic, "send_all", False),
    "produced": (KafkaProducer, "flush", False),
    "flushed": (KafkaLetterTopic, "send_all", True),
    "begun": (KafkaProducer, "begin_transaction", True),
    "flushed-all": (KafkaProducer, "flush", True),
    "not-ended": (KafkaProducer, "commit_transaction", False),
    "ended": (KafkaProducer, "commit_transaction", True),
    "not-noted": (OutboxFollower, "_note", False),
    "noted": (StateDatabase, "drop_used", False),
    "dropped": (StateDatabase, "drop_used", True),
}
"""Steps: a method, before or after whose call of a given number the process is killed."""


def dying(method: Callable[..., Any], call: int, how: signal.Signals, *, after: bool) -> Callable[..., Any]:
    calls = 0

    def dying(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:  # and then it goes on, if it was only frozen and is woken
            os.kill(os.getpid(), how)
        answer = method(*given, **named)
        if calls == call and after:
            os.kill(os.getpid(), how)
        return answer

    return dying


def die_at(
    step: str, how: signal.Signals = signal.SIGKILL, steps: Mapping[str, tuple[object, str, bool]] = DIES
) -> None:
    """Send this process a signal at a step, given as its name and the number of the call; at none for ""."""
    if step:
        name, _, call = step.partition(":")
        owner, method, after = steps[name]
        setattr(owner, method, dying(getattr(owner, method), int(call), how, after=after))


def topology(
    topic: str,
    semantics: Literal["opaque", "transactional"] = "opaque",
    driver_commit_rows: int | None = None,
    dies: str = "",
    exactly_once: bool = False,
) -> Topology:
    die_at(dies)
    transactional_topic.TRANSACTION_TIMEOUT_SECONDS = 2.0
    return large_orders.topology(
        topic,
        f"{topic}-large",
        semantics=semantics,
        table=topic,
        max_records_per_partition=20,
        driver_commit_rows=driver_commit_rows,
        exactly_once=exactly_once,
    )
