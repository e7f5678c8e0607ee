"""Checks, beside a leader's batches, that it still leads. A run whose leader was succeeded ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from txstream.core.errors import FencedError, ServiceUnavailableError, SparkLostError
from txstream.engine.loop.open_batches import Batches
from txstream.engine.loop.workers import Lane, Workers
from txstream.zookeeper import Leadership, ProgressStore

log = logging.getLogger(__name__)

TURN_SECONDS = 0.5
ANSWER_SECONDS = 3.0
"""How long ZooKeeper may take to say who leads, before others that do not answer are blamed without it."""


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


def if_leading(batches: Batches, store: ProgressStore, blame: Callable[[], None]) -> None:
    """Call `blame` on the loop's thread once it is known that this driver still leads.

    A driver that was frozen finds its connections dead. If it was succeeded meanwhile, that is what it says
    (FencedError), and not that somebody else is away. ZooKeeper may be away too; then it blames the others.
    """
    is_told = False

    def tell(_: object = None) -> None:
        nonlocal is_told
        if not is_told:
            is_told = True
            blame()

    def failed(error: BaseException) -> None:
        if isinstance(error, ServiceUnavailableError):
            tell()
        else:
            batches.fail_run(error)

    batches.workers.submit(Lane.WRITE, store.verify, tell, failed)
    batches.workers.after(ANSWER_SECONDS, tell, is_deadline=True)
