"""Spark: the master, and what a small job on its executors finds there.

The job uses pyspark's own worker daemon, since ours needs txstream on the executors, which is one of the
things to find out.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import platform
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark import cloudpickle

from txstream.core.errors import ServiceUnavailableError
from txstream.engine.spark.engine import SparkEngine
from txstream.engine.spark.master import Master
from txstream.engine.spark.session import DEFAULT_MASTER
from txstream.plugins.doctor import executor_probe
from txstream.plugins.doctor.checks import Check
from txstream.plugins.doctor.clocks import Clocks
from txstream.plugins.doctor.local import Place
from txstream.plugins.residents.residents import PORT_SETTING
from txstream.settings import Settings

_REACH_SECONDS = 3.0
_MOST_TASKS = 64
_OTHER_PYTHON = "PYTHON_VERSION_MISMATCH"
# The first error that says more than that the job has failed, or that a traceback follows.
_TOLD = re.compile(r"\w+(?:Error|Exception): (?!Traceback|Job aborted).+")


class SparkCheck:
    """One small job. `stop` gives it up, from any thread; it gives up by itself when the cluster has given no
    executor for `seconds`."""

    def __init__(
        self,
        settings: Settings,
        conf: Mapping[str, str],
        modules: Sequence[str],
        places: Sequence[Place],
        clocks: Clocks,
        seconds: float,
    ) -> None:
        self._seconds = seconds
        self._starved: str | None = None
        self._settings = settings
        self._conf = {**conf, "spark.python.daemon.module": "pyspark.daemon"}
        self._modules = {name: _distribution(name) for name in modules}
        self._places = [(place.what, place.host, place.port) for place in places if place.for_executors]
        self._clocks = clocks
        self._given_up = threading.Event()

    def stop(self) -> None:
        self._given_up.set()

    def look(self) -> Iterator[Check]:
        """Yield the checks of Spark. Raises what starting it raises."""
        master = self._settings.master or DEFAULT_MASTER
        until = time.monotonic() + self._seconds

        def pause(seconds: float) -> bool:
            is_over = self._starved is not None and time.monotonic() > until
            return self._given_up.wait(seconds) or is_over

        def starve(reason: str) -> None:
            self._starved = reason

        with SparkEngine(self._settings, "txstream doctor", self._conf, pause=pause, warn=starve) as engine:
            try:
                context = engine.start()
            except Exception:
                if not pause(0) or self._starved is None:
                    raise
                yield _without_executor(self._starved)
                return
            if self._given_up.is_set():
                return
            if pause(0) and self._starved is not None:
                yield _without_executor(self._starved)
                return
            width = min(_MOST_TASKS, context.defaultParallelism)
            yield Check("spark", True, f"{master} gives executors with {width} core(s) together")
            with _channel(context) as channel:
                places = [*self._places, channel]
                cloudpickle.register_pickle_by_value(executor_probe)  # type: ignore[no-untyped-call]
                try:
                    ask = functools.partial(executor_probe.probe, self._modules, places, _REACH_SECONDS)
                    before = time.time()
                    answers = context.parallelize(range(width), width).mapPartitions(ask).collect()
                except Exception as error:  # noqa: BLE001 - whatever Py4J raises, its text says what happened
                    yield _failed(error)
                    return
                finally:
                    cloudpickle.unregister_pickle_by_value(executor_probe)  # type: ignore[no-untyped-call]
        yield from self._judge(answers, before)

    def _judge(self, answers: Sequence[Mapping[str, Any]], before: float) -> Iterator[Check]:
        executors = {(str(one["host"]), str(one["folder"])): one for one in answers}
        hosts = sorted({host for host, _ in executors})
        for host in hosts:
            mine = [one for (where, _), one in executors.items() if where == host]
            self._clocks.compare(f"executors on {host}", float(mine[0]["time"]), before)
            yield self._packages(host, mine)
            yield _reaches(host, mine)

    def _packages(self, host: str, answers: Sequence[Mapping[str, Any]]) -> Check:
        name = f"executors on {host}: python"
        one = max(answers, key=lambda answer: len(answer["missing"]))
        if one["missing"]:
            wanted = " ".join(self._as_pip_takes_it(module) for module in one["missing"])
            return Check(
                name,
                False,
                f"Python {one['python']} at {one['executable']} lacks {', '.join(one['missing'])}",
                f"{one['executable']} -m pip install {wanted}"
                + (
                    ", or ship it: txstream package --out txstream.zip, --py-files txstream.zip"
                    if "txstream" in one["missing"]
                    else ""
                ),
            )
        other = [
            f"{module} {version} (here {here})"
            for module, version in one["versions"].items()
            if (here := _version(self._modules[module])) is not None and version != here
        ]
        mine = [text for text in other if text.startswith("txstream ")]
        if mine:
            return Check(
                name,
                False,
                f"another txstream: {mine[0]}",
                f"{one['executable']} -m pip install {self._as_pip_takes_it('txstream')}",
            )
        differ = f"; other versions than here: {', '.join(other)}" if other else ""
        return Check(name, True, f"Python {one['python']} with {', '.join(self._modules)}{differ}")

    def _as_pip_takes_it(self, module: str) -> str:
        distribution = self._modules.get(module)
        version = _version(distribution)
        return f"'{distribution}=={version}'" if version is not None else module


def _without_executor(reason: str) -> Check:
    what, _, remedy = reason.removesuffix(". Waiting").partition("; ")
    return Check("spark", False, what, remedy)


def _reaches(host: str, answers: Sequence[Mapping[str, Any]]) -> Check:
    name = f"executors on {host}: network"
    lost = {tuple(place) for one in answers for place in one["unreachable"]}
    if not lost:
        return Check(name, True, "they reach the driver and the services")
    what, where, port, reason = sorted(lost)[0]
    more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
    return Check(
        name,
        False,
        f"{what} at {where}:{port} cannot be reached from there: {reason}{more}",
        f"open the way, or give an address that is good on {host} too; there: nc -vz {where} {port}",
    )


def _failed(error: Exception) -> Check:
    text = str(getattr(error, "java_exception", None) or error)
    if _OTHER_PYTHON in text:
        line = next(line for line in text.splitlines() if _OTHER_PYTHON in line)
        return Check(
            "executors: python",
            False,
            line.partition(_OTHER_PYTHON)[2].strip("] "),
            f"set PYSPARK_PYTHON to a Python {'.'.join(platform.python_version_tuple()[:2])} that is on "
            f"every worker",
        )
    told = _TOLD.search(text)
    reason = text[:300] if told is None else told[0].strip()
    return Check(
        "executors: python",
        False,
        f"the job failed: {reason}",
        "set PYSPARK_PYTHON to a Python with pyspark's needs that is on every worker",
    )


@contextlib.contextmanager
def _channel(context: Any) -> Iterator[tuple[str, str, int]]:
    """Listen as the channel of tasks that stay does, and yield where."""
    conf, loopback = context._conf, "127.0.0.1"
    is_local = Master(str(context.master)).is_local
    host = loopback if is_local else str(conf.get("spark.driver.host", loopback))
    bind = loopback if is_local else str(conf.get("spark.driver.bindAddress", host))
    port = int(str(conf.get(PORT_SETTING, "0")))
    try:
        server = socket.create_server((bind, port), backlog=_MOST_TASKS)
    except OSError as error:
        raise ServiceUnavailableError(
            f"the driver cannot listen at {bind}:{port}: {error}; give spark.driver.bindAddress an "
            f"address of this machine, and {PORT_SETTING} a free port"
        ) from error
    with server:
        yield "the driver's channel for tasks that stay", host, server.getsockname()[1]


def _distribution(module: str) -> str | None:
    found = importlib.metadata.packages_distributions().get(module)
    return found[0] if found else ("txstream" if module == "txstream" else None)


def _version(distribution: str | None) -> str | None:
    try:
        return None if distribution is None else importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
