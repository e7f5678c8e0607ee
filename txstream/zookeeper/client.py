"""One session with ZooKeeper, over kazoo.

Invariants.
- A request's fate is one of three: answered, refused (a kazoo exception that says so), or lost
  (LostAnswerError: it may have been applied, or may yet be). kazoo itself repeats nothing.
- `sessions_lost` grows by one with every session that ends; the owner of an ephemeral znode compares it.
- No call waits for a dead server longer than its `Waiting` allows.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.hosts import collect_hosts
from kazoo.protocol import serialization
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import CREATOR_ALL_ACL

from txstream.core.backoff import Backoff
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import LeaderExistsError, ServiceUnavailableError, UsageError
from txstream.core.waiting import Waiting, WaitStoppedError
from txstream.settings import Settings
from txstream.settings.addresses import unresolved
from txstream.settings.zookeeper_access import DIGEST, SASL, SYSTEM, ZooKeeperAccess
from txstream.zookeeper.candidates import Candidate, candidates, first_living, present_leader
from txstream.zookeeper.fenced_tree import Hook
from txstream.zookeeper.identity import Identity
from txstream.zookeeper.kazoo_tree import REFUSALS, KazooTree, Send
from txstream.zookeeper.paths import ROOT, Paths
from txstream.zookeeper.progress import ProgressStore
from txstream.zookeeper.request_queue import OperatorRequests
from txstream.zookeeper.tree import LostAnswerError

# Without any handler Python prints a library's warnings to standard error; with this one they go where the
# application's own logging configuration sends them, and nowhere when it has none.
logging.getLogger("kazoo").addHandler(logging.NullHandler())


def _without_credentials(record: logging.LogRecord) -> bool:
    """kazoo logs whole requests at DEBUG, even those that carry passwords."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            f"<{type(one).__name__}>" if isinstance(one, (serialization.Auth, serialization.SASL)) else one
            for one in record.args
        )
    return True


logging.getLogger("kazoo.client").addFilter(_without_credentials)

_POLL_SECONDS = 0.1
_QUIET_SECONDS = 1.0
_BACKOFF = Backoff(first_seconds=0.1, longest_seconds=1.0)
_STRAGGLER_SECONDS = 1.0
_HANDSHAKE_SECONDS = 2.0
# kazoo's own default doubles the pause between two connection attempts up to an hour.
_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_jitter": 0.2, "max_delay": 1.0}
# After one of these, it is not known whether the request was or will be applied.
_LOST = (ConnectionLoss, SessionExpiredError, OperationTimeoutError, SessionMovedError)


class ZooKeeper:
    """A session that reconnects by itself, and takes a new session when the old one has expired.

    `hosts` is "h1:2181,h2:2181", with an optional chroot ("h1:2181/app"), which is created when missing.
    Raises UsageError for hosts that are not of this form. With credentials in `access`, what this session
    creates is for them alone. `round_trips` counts the requests that progress
    stores on this session have sent.
    """

    def __init__(
        self,
        hosts: str,
        *,
        connect_timeout_seconds: float = 10.0,
        session_timeout_seconds: float = 10.0,
        access: ZooKeeperAccess | None = None,
    ) -> None:
        self.access = access or ZooKeeperAccess()
        self._is_refused = False
        self.hosts, chroot = _split(hosts)
        self.root = f"{chroot}{ROOT}"
        self.connect_timeout_seconds = connect_timeout_seconds
        self.session_timeout_seconds = session_timeout_seconds
        self.round_trips = 0
        self.sessions_lost = 0
        self._started = False
        self._closing = threading.Lock()
        self._closed = False
        self.client: Any = KazooClient(
            self.hosts,
            timeout=session_timeout_seconds,
            connection_retry=dict(_RECONNECT),
            **_client_options(self.access),
        )
        self.client.add_listener(self._state_changed)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the ZooKeeper of the settings, not started. Raises UsageError without an address, or for
        credentials and files that cannot be used."""
        return cls(
            settings.require_zookeeper(),
            connect_timeout_seconds=settings.connect_timeout_seconds,
            session_timeout_seconds=settings.session_timeout_seconds,
            access=settings.zookeeper_access(),
        )

    def __repr__(self) -> str:
        return f"ZooKeeper({self.hosts!r})"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Connect. Raises ServiceUnavailableError past `connect_timeout_seconds`, and at once for a name that
        cannot be resolved."""
        if self._started:
            return
        self._started = True
        why = unresolved(host for host, _ in collect_hosts(self.hosts)[0])
        if why is not None:
            raise ServiceUnavailableError(
                f"there is no ZooKeeper at {self.hosts}: {why}; check the address given by --zookeeper or "
                "TXSTREAM_ZOOKEEPER"
            )
        if not self.client.start_async().wait(self.connect_timeout_seconds):
            # Closing waits for a connection attempt, which may hang for as long as a session lasts.
            threading.Thread(target=self.close, name="zookeeper-close", daemon=True).start()
            if self._is_refused:
                raise self._refused()
            why = self._why_no_tls()
            if why is not None:
                raise ServiceUnavailableError(
                    f"ZooKeeper at {self.hosts} and this client do not agree on TLS: {why}; check that this "
                    "is the server's port for TLS, and --zookeeper-tls-ca, --zookeeper-tls-certificate and "
                    "--zookeeper-tls-key"
                )
            raise ServiceUnavailableError(
                f"ZooKeeper at {self.hosts} did not answer within {self.connect_timeout_seconds:g} s; check "
                "that it runs and the address given by --zookeeper or TXSTREAM_ZOOKEEPER, or start one with "
                "`txstream up`"
            )
        try:
            self.tree().ensure(self.root)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the session; its ephemeral znodes go at once. A closed session cannot be started again."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self.client.stop()
                self.client.close()

    @property
    def name(self) -> str:
        """What a wait for this service is called."""
        return f"ZooKeeper at {self.hosts}"

    @property
    def connected(self) -> bool:
        """Whether there is a connection now. A silent cut is noticed within 2/3 of the session timeout."""
        return bool(self.client.connected)

    # --- topologies -----------------------------------------------------------------------------------

    def topologies(self) -> list[str]:
        """Return the ids of the topologies that have anything stored here, sorted."""
        tree = self.tree()
        tree.sync()
        return sorted(name for name in tree.children(self.root) or [] if _exists(tree, f"{self.root}/{name}"))

    def leader(self, topology_id: str) -> str | None:
        """Return host:pid of the driver that leads the topology now, or None."""
        return present_leader(self.tree(), Paths(self.root, topology_id).leader)

    def living_driver(self, topology_id: str) -> Candidate | None:
        """Return the driver that leads or will lead, unless all that stand are known to have ended."""
        return first_living(self.tree(), Paths(self.root, topology_id).leader)

    def standbys(self, topology_id: str) -> tuple[Candidate, ...]:
        """Return the drivers that wait to lead the topology, in the order in which they will lead."""
        return tuple(candidates(self.tree(), Paths(self.root, topology_id).leader))[1:]

    def identity(self, topology_id: str) -> Identity | None:
        """Return the identity stored under this id; None if there is none. Raises CorruptStateError."""
        return self.progress(topology_id, MetaCodec(Paths)).read_identity()

    def progress(self, topology_id: str, codec: MetaCodec[Any]) -> ProgressStore:
        """Return the store of a topology's progress, with a command's patience."""
        return ProgressStore(self.tree(), Paths(self.root, topology_id), codec)

    def requests(self, topology_id: str) -> OperatorRequests:
        """Return the requests of a topology's operators, to read or to add to."""
        return OperatorRequests(self.tree(), Paths(self.root, topology_id))

    def delete_topology(self, topology_id: str, *, force: bool = False) -> bool:
        """Remove what is stored about a topology, readable or not. Return whether there was anything.

        Raises LeaderExistsError while a driver leads it or stands by, unless it is known to have ended.
        `force` deletes anyway: a live one would find its progress gone, or somebody else's.
        """
        tree, paths = self.tree(), Paths(self.root, topology_id)
        living = None if force else first_living(tree, paths.leader)
        if living is not None:
            raise LeaderExistsError(
                f"topology {topology_id!r} is run by {living.driver}; stop that driver before deleting it"
            )
        existed = _exists(tree, paths.base)
        self.progress(topology_id, MetaCodec(Paths)).delete_everything()  # no metas are decoded
        return existed

    # --- requests -------------------------------------------------------------------------------------

    def tree(self, patience: Waiting | None = None) -> KazooTree:
        """Return this session as a tree. Without `patience`, a request waits `connect_timeout_seconds`."""
        return KazooTree(self, patience or self.patience(deadline_seconds=self.connect_timeout_seconds))

    def patience(
        self,
        *,
        waiting: Callable[[str], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        deadline_seconds: float | None = None,
    ) -> Waiting:
        """Return how long requests wait. `waiting` is called with a sentence once an outage has lasted a
        second. `should_stop` is asked at every turn of a wait, and never while the service answers."""
        return Waiting(
            partial(_pause, should_stop or (lambda: False)),
            stopped=WaitStoppedError,
            report=waiting or (lambda _: None),
            quiet_seconds=_QUIET_SECONDS,
            deadline_seconds=deadline_seconds,
        )

    def back_off(self, failures: int, patience: Waiting) -> None:
        """Wait before the next try of a request whose answer was lost."""
        patience.turn(self.name, _BACKOFF.after(failures))

    def request(self, send: Send, patience: Waiting) -> Any:
        """Send one request, wait for its answer, and return it.

        Raises the kazoo exceptions with which the server refuses it, LostAnswerError if its fate is unknown,
        ServiceUnavailableError if no answer can be had, and WaitStoppedError.
        """
        sessions_lost = self.sessions_lost
        result = send()
        while not result.wait(_POLL_SECONDS):
            patience.turn(self.name)
            # kazoo can drop a request that was queued at the very moment at which the session ended.
            if self.sessions_lost != sessions_lost and not result.wait(_STRAGGLER_SECONDS):
                raise LostAnswerError("the session ended before the request was answered")
        try:
            answer = result.get_nowait()
        except AuthFailedError as error:
            raise self._refused() from error
        except NoAuthError as error:
            patience.end(self.name)
            raise ServiceUnavailableError(
                f"ZooKeeper at {self.hosts} does not allow {self.access.shown} to use a znode of txstream; "
                "give the credentials of whoever made it (--zookeeper-auth, --zookeeper-user, "
                "--zookeeper-password-file), or let an administrator change its ACL: zkCli.sh -server "
                f"{self.hosts.partition(',')[0]} getAcl {self.root}"
            ) from error
        except ConnectionClosedError as error:  # which kazoo derives from SessionExpiredError
            if self._is_refused:
                raise self._refused() from error
            why = "was closed" if self._closed else "has ended for good; run the command again"
            raise ServiceUnavailableError(f"the session with ZooKeeper at {self.hosts} {why}") from error
        except _LOST as error:
            raise LostAnswerError(str(error) or type(error).__name__) from error
        except tuple(REFUSALS):
            patience.end(self.name)
            raise
        except KazooException as error:
            raise ServiceUnavailableError(
                f"ZooKeeper at {self.hosts} refuses a request of txstream: {type(error).__name__} {error}"
            ) from error
        patience.end(self.name)
        return answer

    def read(self, send: Send, patience: Waiting) -> Any:
        """As `request`, for a request that can be repeated without harm. Repeats it until it is answered."""
        failures = 0
        while True:
            try:
                return self.request(send, patience)
            except LostAnswerError:
                failures += 1
                self.back_off(failures, patience)

    def _refused(self) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            f"ZooKeeper at {self.hosts} refuses {self.access.shown}, or hung up while it logged in; check "
            "--zookeeper-auth, --zookeeper-user and --zookeeper-password-file "
            "(TXSTREAM_ZOOKEEPER_PASSWORD), and run the command again"
        )

    def _why_no_tls(self) -> str | None:
        """Return why a handshake with the first server fails; None if it does not, or there is to be none."""
        if not self.access.uses_tls:
            return None
        host, port = collect_hosts(self.hosts)[0][0]
        try:
            with (
                socket.create_connection((host, port), _HANDSHAKE_SECONDS) as plain,
                self.access.tls_context().wrap_socket(plain, server_hostname=host) as protected,
            ):
                protected.settimeout(_HANDSHAKE_SECONDS)
                protected.recv(1)  # only now does a server of TLS 1.3 tell that it wants a certificate
        except TimeoutError:
            return None
        except OSError as error:
            return f"{self._of_our_certificate(error)}{error}"
        return None

    def _of_our_certificate(self, error: OSError) -> str:
        """Say so if the server has sent an alert about the certificate that we have shown, or about none."""
        reason = str(getattr(error, "reason", None))
        if "_ALERT_" not in reason or not ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
            return ""
        if self.access.tls_certificate is None:
            return "the server wants a certificate of ours, and none was given; it says "
        return f"the server does not accept our certificate {self.access.tls_certificate}; it says "

    def _state_changed(self, state: str) -> None:
        # Called by kazoo's connection thread, so it must not block.
        if self.client.client_state == KeeperState.AUTH_FAILED:
            self._is_refused = True
        if state == KazooState.LOST:
            self.sessions_lost += 1


class ZooKeeperProgress(ProgressStore):
    """The progress of one topology in ZooKeeper.

    While ZooKeeper is away every call waits, calls `waiting` once ("waiting for ZooKeeper at ... since
    12:00:05") and ends when `should_stop` returns True (WaitStoppedError). Commands set `deadline_seconds`,
    which ends it with ServiceUnavailableError. A driver has none: the fate of a write must become known.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        topology_id: str,
        codec: MetaCodec[Any],
        *,
        waiting: Callable[[str], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        deadline_seconds: float | None = None,
        hook: Hook | None = None,
    ) -> None:
        patience = zk.patience(waiting=waiting, should_stop=should_stop, deadline_seconds=deadline_seconds)
        super().__init__(KazooTree(zk, patience, counted=True), Paths(zk.root, topology_id), codec, hook=hook)


def _pause(should_stop: Callable[[], bool], seconds: float) -> bool:
    """Wait, and return whether to stop, which is asked often."""
    rest = threading.Event()
    while seconds > 0 and not should_stop():
        rest.wait(min(seconds, _POLL_SECONDS))
        seconds -= _POLL_SECONDS
    return should_stop()


def _client_options(access: ZooKeeperAccess) -> dict[str, Any]:
    """Return what kazoo is told about credentials and TLS."""
    options: dict[str, Any] = {}
    if access.auth == DIGEST:
        options["auth_data"] = [("digest", f"{access.user}:{access.password}")]
    if access.auth == SASL:
        options["sasl_options"] = {
            "mechanism": "DIGEST-MD5",
            "username": access.user,
            "password": access.password,
        }
    if access.auth is not None:
        options["default_acl"] = CREATOR_ALL_ACL
    if access.uses_tls:
        options |= {
            "use_ssl": True,
            "check_hostname": True,
            "ca": None if access.tls_ca == SYSTEM else access.tls_ca,
            "certfile": access.tls_certificate,
            "keyfile": access.tls_key,
        }
    return options


def _exists(tree: KazooTree, base: str) -> bool:
    # A driver that stopped before its topology was ever run leaves `leader` alone.
    return bool({"identity", "coordinator", "epoch"}.intersection(tree.children(base) or []))


def _split(hosts: str) -> tuple[str, str]:
    """Return the hosts without their chroot, and the chroot ("" if there is none). Raises UsageError."""
    servers, _, rest = hosts.strip().partition("/")
    chroot = f"/{rest.strip('/')}" if rest.strip("/") else ""
    try:
        collect_hosts(servers)
    except ValueError as error:
        raise UsageError(
            f"{hosts!r} is not a ZooKeeper address ({error}); expected host:port[,host:port]...[/chroot], "
            "for example 127.0.0.1:2181"
        ) from error
    if any(part in ("", ".", "..") for part in chroot.split("/")[1:]):
        raise UsageError(f"{chroot!r} is not a ZooKeeper path, in {hosts!r}")
    return servers, chroot
