"""A znode watched for as long as the session lives, over cut connections and lost sessions.

Invariants.
- `changed` is called after the watch was set again, never before, so that a read in `changed` sees every
  change that came while no watch was set.
- ZooKeeper forgets a watch once it has fired, and kazoo forgets all when the connection is cut: it is set
  again after each firing and after each new connection.
- All of this runs in kazoo's own threads, so nothing here waits, and nothing is raised there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kazoo.protocol.states import EventType, KazooState

log = logging.getLogger(__name__)


class KazooWatch:
    """Calls `changed` once when it is set, and after every change of `path`, which need not exist."""

    def __init__(self, client: Any, path: str, changed: Callable[[], None]) -> None:
        self._client = client
        self._path = path
        self._changed = changed
        self._stopped = False

    def start(self) -> None:
        self._client.add_listener(self._state_changed)
        self._set()

    def stop(self) -> None:
        """Tell nothing any more. The server forgets the watch with the znode's next change, or with us."""
        self._stopped = True
        self._client.remove_listener(self._state_changed)

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._set()

    def _fired(self, event: Any) -> None:
        # Without a type it says that the connection was cut; the next one sets the watch.
        if event.type != EventType.NONE:
            self._set()

    def _set(self) -> None:
        if not self._stopped:
            # A watcher that is set twice is still one to kazoo, because bound methods compare equal.
            self._client.exists_async(self._path, self._fired).rawlink(self._was_set)

    def _was_set(self, result: Any) -> None:
        # Where it failed, the connection was cut or closed.
        if self._stopped or not result.successful():
            return
        try:
            self._changed()
        except Exception:
            log.exception("what was to be told of a change of %s failed", self._path)
