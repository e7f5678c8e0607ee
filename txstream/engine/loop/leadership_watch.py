"""Checks, beside a leader's batches, that it still leads. A run whose leader was succeeded ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from txstream.api.errors import FencedError, ServiceUnavailableError, SparkLostError
from txstream.engine.loop.workers import Workers
from txstream.zookeeper import Leadership, ProgressStore

log = logging.getLogger(__name__)

TURN_SECONDS = 0.5


class Abortable(Protocol):
    """What the watch needs of an event loop."""

    def abort(self, error: BaseException | None = None) -> None: ...


def watch_leadership(
    leadership: Leadership,
    store: ProgressStore,
    workers: Workers,
    loop: Abortable,
    *,
    check_engine: Callable[[], None],
    waiting: Callable[[str], None],
) -> None:
    """Watch until `workers` are told to end. After a lost session this driver still leads if the epoch is its
    own; it then stands for election again. Aborts `loop` with the FencedError if another driver leads, and
    with the SparkLostError that `check_engine` raises."""

    def should_stop() -> bool:
        store.verify()  # FencedError once the leader that we wait behind has claimed its epoch
        return workers.is_interrupted

    while not workers.pause(TURN_SECONDS):
        try:
            check_engine()
            if not leadership.held:
                store.verify()
                leadership.acquire(wait=True, should_stop=should_stop, waiting=waiting)
        except (FencedError, SparkLostError) as error:
            loop.abort(error)
            return
        except ServiceUnavailableError as error:
            log.info("ZooKeeper is away: %s", error)
