"""The master of a SparkContext: where it is, whether it is there, and whether it gives executors."""

from __future__ import annotations

import contextlib
import math
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from txstream.core.errors import ServiceUnavailableError, UsageError

if TYPE_CHECKING:
    from pyspark import SparkContext

_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
_STANDALONE = "spark://"
_LOCAL = re.compile(r"local(\[\s*(?P<slots>\d+|\*)\s*(?P<failures>,\s*\d+\s*)?\])?")


@dataclass(frozen=True)
class Master:
    """A master's URL, parsed as far as it is needed here."""

    url: str
    _addresses: list[tuple[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        found = []
        if self.url.startswith(_STANDALONE):
            for address in self.url.removeprefix(_STANDALONE).split(","):
                host, _, port = address.rpartition(":")
                if host and port.isdecimal():  # Spark itself refuses the rest, at once
                    found.append((host.strip("[]"), int(port)))
        object.__setattr__(self, "_addresses", found)

    @property
    def is_local(self) -> bool:
        """Whether all tasks run on this machine, so that they can read its files."""
        return self.url.startswith("local")

    @property
    def is_in_process(self) -> bool:
        """Whether all tasks run in the driver's own Java process."""
        return self.is_local and not self.url.startswith("local-cluster")

    @property
    def is_standalone(self) -> bool:
        return bool(self._addresses)

    @property
    def is_on_loopback(self) -> bool:
        return self.is_local or (
            self.is_standalone and all(_is_loopback(host) for host, _ in self._addresses)
        )

    def with_slots(self, more: int) -> Master:
        """Return the master with so many slots more, if it is in this process; other masters have what they
        have."""
        found = _LOCAL.fullmatch(self.url)
        if not more or found is None:
            return self
        slots = _cores() if found["slots"] == "*" else int(found["slots"] or 1)
        return Master(f"local[{slots + more}{found['failures'] or ''}]")

    def refuse(self) -> None:
        """Raise UsageError for what is no master of Spark's, or one that cannot work."""
        if self.url.startswith("sc://"):
            raise UsageError(
                f"--master {self.url} is a Spark Connect server, which lets no driver run Python functions "
                "over RDDs or share broadcast variables, as txstream does; give the cluster's own master, "
                "such as spark://HOST:PORT, or local[N]"
            )
        if not (self.url == "yarn" or self.url.startswith(("local", "spark://", "k8s://"))):
            raise UsageError(
                f"--master {self.url!r} is no master of Spark's; it is local[N], spark://HOST:PORT, "
                "k8s://HOST:PORT or yarn"
            )

    def reach(self, timeout_seconds: float) -> None:
        """Raise ServiceUnavailableError when nothing listens at any of its addresses. Spark itself would try
        for a minute."""
        problem: OSError | None = None
        for address in self._addresses:
            try:
                socket.create_connection(address, timeout_seconds / len(self._addresses)).close()
            except OSError as error:
                problem = error
            else:
                return
        if problem is not None:
            raise ServiceUnavailableError(
                f"there is no Spark master at {self.url} ({problem}); start it, or give the right "
                "address with --master (Settings.master, TXSTREAM_MASTER)"
            ) from problem


def _cores() -> int:
    """Return how many cores this process may use, as Java counts them for local[*]."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # a container without a limit, or no container
        quota, period = _CPU_LIMIT.read_text().split()
        cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def await_executor(
    context: SparkContext,
    *,
    patience_seconds: float,
    wait: Callable[[float], bool],
    warn: Callable[[str], None],
) -> None:
    """Block until a cluster has given the first executor. `wait` pauses, and returns True to give up.

    After `patience_seconds`, `warn` is called once with the reason. A master that lacks cores or memory gives
    no executor until it has them, and every batch would time out in the meantime.
    """
    conf = context._conf
    if Master(str(context.master)).is_in_process or conf.get("spark.dynamicAllocation.enabled") == "true":
        return
    waited = 0.0
    while len(context._jsc.sc().statusTracker().getExecutorInfos()) < 2:  # the driver is among them
        if wait(_POLL_SECONDS):
            return
        waited += _POLL_SECONDS
        if waited - _POLL_SECONDS < patience_seconds <= waited:
            warn(
                f"{context.master} has accepted the run, but gives it no executor: no worker has "
                f"{conf.get('spark.executor.cores', 'a')} free core(s) and "
                f"{conf.get('spark.executor.memory', '1g')} of memory; free some, or ask for less "
                "(spark.executor.cores, spark.executor.memory). Waiting"
            )


_POLL_SECONDS = 0.1


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
