"""Spark's Java process: started out of reach of the driver's signals, watched, and ended with the run.

Invariants. A run without a session has a process of its own, so that none of its settings stay for the next
run. The process reads a pipe that only the driver holds, so it ends with the driver, however the driver ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txstream.core.errors import ServiceUnavailableError, SparkLostError
from txstream.engine.spark.log import reason_in
from txstream.settings import given_secrets

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

log = logging.getLogger(__name__)

_MEMORY = (
    "most often memory is short, its own (spark.driver.memory, 1g unless set) or the machine's, of which the "
    "kernel's log tells"
)
_SECRET = re.compile("password|secret|token|credential|access.?key", re.IGNORECASE)
_END_SECONDS = 10.0
_POLL_SECONDS = 0.1
# A connection breaks a moment before the end of the process can be seen.
_DEATH_SECONDS = 2.0


@dataclass(frozen=True)
class SparkProcess:
    """The Java process behind a SparkContext, and the file that it prints to, if that is known.

    `process` is None where Java has started Python, as spark-submit does.
    """

    process: subprocess.Popen[bytes] | None
    log_file: Path | None = None

    @classmethod
    def of(cls, gateway: Any) -> SparkProcess:
        return cls(getattr(gateway, "proc", None), getattr(gateway, "txstream_log", None))

    def check(self) -> None:
        """Raise SparkLostError when the process has ended."""
        status = None if self.process is None else self.process.poll()
        if status is not None:
            how = f"with status {status}" if status >= 0 else f"by signal {-status} ({_name(-status)})"
            where = f"; its log is {self.log_file}" if self.log_file else ""
            raise SparkLostError(f"Spark's Java process ended {how}: {_MEMORY}{where}")

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """Raise SparkLostError for any error in this block that the end of the process has caused."""
        try:
            yield
        except SparkLostError:
            raise
        except Exception as error:
            if self.process is not None and _is_broken_connection(error):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(_DEATH_SECONDS)
            try:
                self.check()
            except SparkLostError as lost:
                raise lost from error
            raise

    @contextlib.contextmanager
    def killed_after(self, seconds: float, message: str) -> Iterator[None]:
        """Kill the process if the block takes longer than `seconds`. The error that the block then raises
        becomes ServiceUnavailableError with `message`."""
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            if self.process is not None:
                self.process.kill()

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        except Exception as error:
            if expired.is_set():
                raise ServiceUnavailableError(message) from error
            raise
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def killed_when(self, is_due: Callable[[], bool]) -> Iterator[None]:
        """Kill the process as soon as `is_due` returns True during the block, which then fails."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_POLL_SECONDS):
                if self.process is not None and is_due():
                    self.process.kill()

        threading.Thread(target=watch, name="txstream-spark-start", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def end(self, context: SparkContext | None, gateway: Any) -> None:
        """Stop the context, if there is one, and end the process."""
        if context is not None:
            if self.process is not None and self.process.poll() is not None:
                context._jsc = None  # the process is gone
            try:
                context.stop()
            except Exception as error:  # noqa: BLE001 - what ended the run must not be hidden
                log.info("Spark could not be stopped in good order: %s", error)
        if self.process is None:
            return
        gateway.shutdown()
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def without_secrets(conf: SparkConf) -> SparkConf:
    """Return the settings that may stand on Java's command line, which `ps` shows. The SparkContext gets the
    others through its gateway."""
    from pyspark import SparkConf

    public = [
        (name, value)
        for name, value in conf.getAll()
        if not _SECRET.search(name) and given_secrets.without_secrets(value) == value
    ]
    return SparkConf(loadDefaults=False).setAll(public)


def launch(
    conf: SparkConf, log_file: Path | None, environment: Mapping[str, str], is_given_up: Callable[[], bool]
) -> None:
    """Start the process for the next SparkContext, with further variables in its environment. It is killed as
    soon as `is_given_up` returns True. Raises SparkLostError when it ends while it starts.

    The process leads a session of its own and ignores SIGTERM and SIGHUP. A signal to the driver's process
    group, or to all processes of a service, is for the driver alone, which still needs Spark to finish its
    open batches.
    """
    from pyspark import SparkContext, java_gateway
    from pyspark.errors import PySparkRuntimeError

    popen_kwargs: dict[str, Any] = {"start_new_session": True}
    with contextlib.ExitStack() as stack:

        def popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(*arguments, **options)
            stack.enter_context(SparkProcess(process).killed_when(is_given_up))
            return process

        # PySpark hands the process out only when it answers. The watch must begin before that.
        stack.callback(vars(java_gateway).update, Popen=subprocess.Popen)
        vars(java_gateway).update(Popen=popen)
        stack.enter_context(_variables(environment))
        start = 0
        if log_file is not None:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            sink = stack.enter_context(log_file.open("ab"))
            start = sink.tell()
            popen_kwargs |= {"stdout": sink, "stderr": sink}
        try:
            # pyspark ships types, but not for this function.
            gateway = java_gateway.launch_gateway(conf=without_secrets(conf), popen_kwargs=popen_kwargs)  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            raise SparkLostError(_told_while_starting(log_file, start)) from error
        with SparkContext._lock:
            SparkContext._gateway = gateway
            SparkContext._jvm = gateway.jvm
        if gateway.proc is None:
            return
        gateway.txstream_log = log_file
        signals = gateway.jvm.sun.misc
        for name in ("TERM", "HUP"):
            signals.Signal.handle(signals.Signal(name), signals.SignalHandler.SIG_IGN)


@contextlib.contextmanager
def _variables(changes: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the time of the block: PySpark passes them to the process. Users' own values win."""
    added = [name for name in changes if name not in os.environ]
    os.environ.update({name: changes[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _told_while_starting(log_file: Path | None, start: int) -> str:
    printed = "" if log_file is None else log_file.read_bytes()[start:].decode(errors="replace")
    reason = reason_in(printed)
    if reason is not None:
        return f"Spark's Java process ended while it started: {reason}; its log is {log_file}"
    return f"Spark's Java process ended while it started, and said nothing: {_MEMORY}"


def _is_broken_connection(error: BaseException | None) -> bool:
    from py4j.protocol import Py4JNetworkError

    seen: set[int] = set()  # an error that was raised again may be among its own causes
    while error is not None and id(error) not in seen:
        if isinstance(error, (OSError, Py4JNetworkError)):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
