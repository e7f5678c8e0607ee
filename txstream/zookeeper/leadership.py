"""Who leads a topology: election over ephemeral, sequential znodes below `leader/`.

Invariants.
- The candidate with the lowest sequence number leads; each other one watches the one before it.
- A candidate's znode belongs to one session. When the session is lost, so is the lead, and the next
  `acquire` makes a new znode. Its token says which driver it is of, and in which session that driver thought
  to be; a driver deletes all of its own but the one of its present session. One that was asked for in the old
  session may be made in the new one, and would be waited for as long as that lasts.
- Election keeps two drivers from working against each other; it keeps nothing safe. A leader that does not
  know yet that it was succeeded is stopped by the epoch and by the fences.

kazoo's own lock recipe is not used: it keeps believing in a lock whose session was lost, and it cannot be
interrupted without a second thread.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable

from kazoo.exceptions import NoNodeError

from txstream.api.errors import LeaderExistsError, ServiceUnavailableError
from txstream.zookeeper.candidates import candidate_at, candidate_data, in_order
from txstream.zookeeper.client import ZooKeeper
from txstream.zookeeper.kazoo_tree import KazooTree, back_off
from txstream.zookeeper.paths import Paths
from txstream.zookeeper.patience import Patience, WaitStoppedError
from txstream.zookeeper.tree import LostAnswerError

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_RELEASE_SECONDS = 2.0


class Leadership:
    """One driver's candidacy for one topology. Not for several threads, except `held`. `standby` is how it
    stands by, for operators to read."""

    def __init__(self, zk: ZooKeeper, topology_id: str, standby: str | None = None) -> None:
        self._zk = zk
        self._standby = standby
        self._paths = Paths(zk.root, topology_id)
        self._driver = uuid.uuid4().hex[:24]
        self._held_in: int | None = None

    @property
    def held(self) -> bool:
        """Do I lead, as far as is known here? False as soon as the session is known to be lost, which
        ZooKeeper tells when it can be reached again."""
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
        `should_stop` says so, this returns, and `held` is False. Raises LeaderExistsError when `wait` is
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
        """Lead no longer, and be no candidate. When ZooKeeper cannot be reached, the session's end, at the
        latest, does the same."""
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
        patience: Patience,
        wait: bool,
        should_stop: Callable[[], bool],
        waiting: Callable[[str], None],
    ) -> None:
        tree = self._zk.tree(patience)
        told = None
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
            if spares:  # of a session that was lost, or an answer was, and the znode it was about came to be
                for spare in spares:
                    tree.discard(f"{self._paths.leader}/{spare}")
                continue
            if mine is None:
                try:
                    self._stand(tree, patience, token, missing=names is None)
                except LostAnswerError:
                    failures += 1
                    back_off(failures, patience)
                continue
            if candidates[0] == mine:
                if session == self._zk.sessions_lost:
                    self._held_in = session
                    return
                continue
            found = candidate_at(tree, f"{self._paths.leader}/{candidates[0]}")
            if found is None:
                continue
            leader = found.driver
            if not wait:
                raise LeaderExistsError(
                    f"topology {self._paths.topology_id!r} is run by {leader}; stop that driver first, "
                    "or leave out --no-wait to stand by and take over when it ends"
                )
            if leader != told:
                told = leader
                waiting(f"topology {self._paths.topology_id!r} is run by {leader}; standing by to take over")
            self._watch(patience, candidates[candidates.index(mine) - 1], session, should_stop)

    def _stand(self, tree: KazooTree, patience: Patience, token: str, *, missing: bool) -> None:
        if missing:
            tree.ensure(self._paths.leader)
        data = candidate_data(self._standby)
        path = f"{self._paths.leader}/{token}-"
        try:
            self._zk.request(
                lambda: self._zk.client.create_async(path, data, ephemeral=True, sequence=True), patience
            )
        except NoNodeError:  # `leader` was deleted with its topology just now
            tree.ensure(self._paths.leader)

    def _watch(
        self, patience: Patience, predecessor: str, session: int, should_stop: Callable[[], bool]
    ) -> None:
        """Return when the candidate before me may be gone, when my session is, or to stop."""
        changed = threading.Event()
        path = f"{self._paths.leader}/{predecessor}"
        try:
            # kazoo calls the watcher also when the connection is cut.
            self._zk.read(lambda: self._zk.client.get_async(path, lambda _: changed.set()), patience)
        except NoNodeError:
            return
        while not changed.wait(_POLL_SECONDS) and not should_stop() and session == self._zk.sessions_lost:
            continue

    def _own(self, names: Iterable[str]) -> list[str]:
        """Of whichever session."""
        return [name for name in in_order(names) if name.startswith(self._driver)]
