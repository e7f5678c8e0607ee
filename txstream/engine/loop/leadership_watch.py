"""Beside a leader's batches: does it lead still? A run that was succeeded ends."""

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
    """An event loop, as far as it matters here."""

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
    """Until `workers` are told to end. After a lost session: leader still if the epoch is still ours; then
    stand for election again. Aborts `loop` with the FencedError when another leads, and with the
    SparkLostError that `check_engine` raises."""

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
