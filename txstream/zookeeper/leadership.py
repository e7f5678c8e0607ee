"""Who leads a topology: election over ephemeral, sequential znodes below `leader/`.

Invariants.
- The candidate with the lowest sequence number leads; every other one watches the one before it.
- A candidate's znode belongs to one session. When the session is lost, so is the lead, and the next
  `acquire` makes a new znode. Its token names the driver, and the session in which the driver believed itself
  to be. A driver deletes all of its znodes but the one of its present session: a znode that was requested in
  the old session may be made in the new one, and others would wait for it as long as that session lasts.
- Election keeps two drivers from working against each other; it keeps no data safe. The epoch and the fences
  stop a leader that does not know yet that it was succeeded.

kazoo's own lock recipe is not used: it keeps believing in a lock whose session was lost, and it cannot be
interrupted without a second thread.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable

from kazoo.exceptions import NoNodeError

from txstream.core.errors import LeaderExistsError, ServiceUnavailableError
from txstream.core.waiting import Waiting, WaitStoppedError
from txstream.zookeeper.candidates import candidate_at, candidate_data, in_order
from txstream.zookeeper.client import ZooKeeper
from txstream.zookeeper.kazoo_tree import KazooTree
from txstream.zookeeper.paths import Paths
from txstream.zookeeper.tree import LostAnswerError

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_RELEASE_SECONDS = 2.0


class Leadership:
    """One driver's candidacy for one topology. Only `held` may be used from several threads. `standby` says
    how the driver stands by, for operators to read."""

    def __init__(self, zk: ZooKeeper, topology_id: str, standby: str | None = None) -> None:
        self._zk = zk
        self._standby = standby
        self._paths = Paths(zk.root, topology_id)
        self._driver = uuid.uuid4().hex[:24]
        self._held_in: int | None = None

    @property
    def held(self) -> bool:
        """Whether this driver leads, as far as it knows. False as soon as the session is known to be lost,
        which is only known when it can be reached again."""
        return self._held_in is not None and self._held_in == self._zk.sessions_lost

    def acquire(
        self,
        *,
        wait: bool = True,
        should_stop: Callable[[], bool] | None = None,
        waiting: Callable[[str], None] | None = None,
    ) -> None:
        """Become the leader; wait as a standby while another driver leads.

        `waiting` is called with a sentence that says who leads, and again when that changes. When
        `should_stop` returns True, this returns, and `held` is False. Raises LeaderExistsError if `wait` is
        false and another driver leads. A driver that does not hold the lead afterwards is no longer a
        candidate.
        """
        if self.held:
            return
        deadline_seconds = None if wait else self._zk.connect_timeout_seconds
        patience = self._zk.patience(
            waiting=waiting, should_stop=should_stop, deadline_seconds=deadline_seconds
        )
        try:
            self._campaign(patience, wait, should_stop or (lambda: False), waiting or (lambda _: None))
        except WaitStoppedError:
            self.release()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give up the lead and the candidacy. If ZooKeeper cannot be reached, the end of the session does the
        same, at the latest."""
        self._held_in = None
        tree = self._zk.tree(self._zk.patience(deadline_seconds=_RELEASE_SECONDS))
        try:
            for name in self._own(tree.children(self._paths.leader) or []):
                tree.discard(f"{self._paths.leader}/{name}")
        except ServiceUnavailableError as error:
            log.info(
                "the candidacy for topology %r ends with its session: %s", self._paths.topology_id, error
            )

    def _campaign(
        self,
        patience: Waiting,
        wait: bool,
        should_stop: Callable[[], bool],
        waiting: Callable[[str], None],
    ) -> None:
        tree = self._zk.tree(patience)
        logged = None
        failures = 0
        while True:
            if should_stop():
                raise WaitStoppedError(f"stopped while waiting to lead topology {self._paths.topology_id!r}")
            session = self._zk.sessions_lost
            token = f"{self._driver}{session:08x}"
            names = tree.children(self._paths.leader)
            candidates = in_order(names or [])
            own = self._own(candidates)
            mine = next((name for name in own if name.startswith(token)), None)
            spares = [name for name in own if name != mine]
            if spares:  # from a lost session, or made by a request whose answer was lost
                for spare in spares:
                    tree.discard(f"{self._paths.leader}/{spare}")
                continue
            if mine is None:
                try:
                    self._stand(tree, patience, token, missing=names is None)
                except LostAnswerError:
                    failures += 1
                    self._zk.back_off(failures, patience)
                continue
            if candidates[0] == mine:
                if session == self._zk.sessions_lost:
                    self._held_in = session
                    return
                continue
            found = candidate_at(tree, f"{self._paths.leader}/{candidates[0]}")
            if found is None:
                continue
            has_ended, position = found.runs() is False, candidates.index(mine)
            leader = f"topology {self._paths.topology_id!r} is run by {found.driver}"
            if has_ended:
                seconds = found.session_seconds or self._zk.session_timeout_seconds
                leader = (
                    f"topology {self._paths.topology_id!r} was run by {found.driver}, which has ended; "
                    f"its session ends within {seconds:g} s"
                )
            if not wait:
                first = "run this again then" if has_ended else "stop that driver first"
                raise LeaderExistsError(
                    f"{leader}; {first}, or leave out --no-wait to stand by and take over when it ends"
                )
            if found.driver != logged:
                logged = found.driver
                is_next = has_ended and position == 1
                waiting(leader + (", then this run takes over" if is_next else "; standing by to take over"))
            self._watch(patience, candidates[position - 1], session, should_stop)

    def _stand(self, tree: KazooTree, patience: Waiting, token: str, *, missing: bool) -> None:
        if missing:
            tree.ensure(self._paths.leader)
        data = candidate_data(self._standby, self._zk.session_timeout_seconds)
        path = f"{self._paths.leader}/{token}-"
        try:
            self._zk.request(
                lambda: self._zk.client.create_async(path, data, ephemeral=True, sequence=True), patience
            )
        except NoNodeError:  # `leader` was deleted with its topology just now
            tree.ensure(self._paths.leader)

    def _watch(
        self, patience: Waiting, predecessor: str, session: int, should_stop: Callable[[], bool]
    ) -> None:
        """Return when the candidate before this one may be gone, the session is lost, or it is to stop."""
        changed = threading.Event()
        path = f"{self._paths.leader}/{predecessor}"
        try:
            # kazoo also calls the watcher when the connection is cut.
            self._zk.read(lambda: self._zk.client.get_async(path, lambda _: changed.set()), patience)
        except NoNodeError:
            return
        while not changed.wait(_POLL_SECONDS) and not should_stop() and session == self._zk.sessions_lost:
            continue

    def _own(self, names: Iterable[str]) -> list[str]:
        """Return this driver's candidates among `names`, of any session."""
        return [name for name in in_order(names) if name.startswith(self._driver)]
