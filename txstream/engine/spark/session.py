"""The SparkSession: made with the settings that keep small batches cheap, or a user's own, checked for them.

Measured on 2 cores: Spark's defaults cost 76 to 324 ms for a batch of 1,000 records, these about 20 ms.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txstream.core.errors import ServiceUnavailableError, TxstreamError, UsageError
from txstream.engine.spark.java_process import SparkProcess, launch
from txstream.engine.spark.log import reason_in
from txstream.engine.spark.master import Master

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

DAEMON_MODULE = "txstream.engine.spark.daemon"
DEFAULT_MASTER = "local[*]"
# Spark would try for a minute. On a busy machine, a context takes ten seconds when all is well.
MASTER_SECONDS = 30.0

# A commit is short and holds up every batch behind it, so its tasks go before those of processing.
PROCESSING_POOL = "processing"
COMMIT_POOL = "commit"
ALLOCATION_SETTING = "spark.scheduler.allocation.file"

# A pool that has less than its minimum share is served first, and no cluster has so many cores. Within a pool
# jobs are served in the order in which they began, so the older batch goes first.
_ALLOCATIONS = f"""<?xml version="1.0"?>
<allocations>
  <pool name="{COMMIT_POOL}">
    <schedulingMode>FIFO</schedulingMode><weight>1</weight><minShare>1000000</minShare>
  </pool>
  <pool name="{PROCESSING_POOL}">
    <schedulingMode>FIFO</schedulingMode><weight>1</weight><minShare>0</minShare>
  </pool>
</allocations>
"""

# Unix sockets save a 40 ms delayed acknowledgement between JVM and Python. The daemon saves a garbage
# collection after every task. FAIR lets several batches share the cores. With locality.wait at 0, a task
# never waits for a better place to run.
RECIPE: Mapping[str, str] = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": DAEMON_MODULE,
    "spark.python.worker.reuse": "true",
    "spark.python.worker.faulthandler.enabled": "true",  # a process that ends says by which signal
    "spark.scheduler.mode": "FAIR",
    "spark.locality.wait": "0",
    "spark.sql.adaptive.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


# Without this option Java lives on when memory is gone, with threads missing, and every batch times out.
JAVA_OPTIONS = "-XX:+ExitOnOutOfMemoryError"
# Java's second compiler takes half of the CPU time of a start and of the first hundred batches. Where the
# work is done in Python, Java only schedules, and is no slower without it after thousands of batches. What a
# job calls once is called once for each batch. If that is compiled after 20 calls instead of 200, the first
# hundreds of batches take two thirds of the CPU time. Without the second compiler, Java also reserves 48 MB
# for compiled code in place of 240: queries of many shapes fill it, and then every further one fails.
CODE_CACHE = "-XX:ReservedCodeCacheSize=240m"
QUICK_JAVA = f"-XX:TieredStopAtLevel=1 -XX:CompileThresholdScaling=0.1 {CODE_CACHE}"


@contextlib.contextmanager
def pool_settings() -> Iterator[dict[str, str]]:
    """The pools' settings, for starting a SparkContext. Their file is read then and gone after the block."""
    with tempfile.TemporaryDirectory(prefix="txstream-") as folder:
        file = Path(folder) / "pools.xml"
        file.write_text(_ALLOCATIONS)
        yield {ALLOCATION_SETTING: file.as_uri()}


def worker_settings(workers: int | None, slots: int, master: str | None) -> dict[str, str]:
    """Return Spark's settings for `workers` executor processes that together have at least `slots` cores.

    A local master has one worker, this process; more give a warning. Other settings of the user's win.
    """
    if workers is None:
        return {}
    if Master(master or DEFAULT_MASTER).is_in_process:
        if workers > 1:
            log.warning(
                "workers=%d, but the master %s has one worker; give the address of a cluster to have more",
                workers,
                master or DEFAULT_MASTER,
            )
        return {}
    cores = -(-slots // workers)
    return {
        "spark.executor.cores": str(cores),
        "spark.executor.instances": str(workers),
        "spark.cores.max": str(cores * workers),  # how a standalone master limits the number of executors
    }


def missing_settings(context: SparkContext) -> dict[str, str]:
    """Return the settings of the recipe that a user's session lacks, with the values they should have."""
    conf = context._conf  # `getConf` copies it, with 260 requests to the JVM
    return {name: value for name, value in RECIPE.items() if conf.get(name, "") != value}


def warn_of_missing_settings(context: SparkContext) -> None:
    """Warn the user of a session of the settings that would make small batches cheaper."""
    missing = missing_settings(context)
    if missing:
        wanted = ", ".join(f"{name}={value}" for name, value in missing.items())
        log.warning(
            "this SparkSession lacks settings that make small batches 4 to 15 times cheaper: %s", wanted
        )


def create_context(
    *,
    master: str | None = None,
    app_name: str = "txstream",
    conf: Mapping[str, str] | None = None,
    log_file: Path | None = None,
    package: str | None = None,
    connect_timeout_seconds: float = 10.0,
    is_given_up: Callable[[], bool] = lambda: False,
) -> SparkContext:
    """A SparkContext with the recipe: all that batches need, two seconds sooner than a SparkSession.

    `log_file` takes all that Spark's JVM prints; `package` is the zip of the framework for executors that do
    not have it. The start fails as soon as `is_given_up` returns True. Raises UsageError for a master that
    Spark does not have, ServiceUnavailableError when Spark or its master cannot be started or reached.
    """
    where = Master(master or DEFAULT_MASTER)
    where.refuse()
    where.reach(connect_timeout_seconds)
    # Spark would run the workers on whatever `python3` is on the path, which may lack every dependency.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark import SparkConf, SparkContext

    settings = SparkConf()
    settings.setMaster(where.url).setAppName(app_name)
    settings.set("spark.ui.enabled", "false")
    for name, value in {**RECIPE, **(conf or {})}.items():
        settings.set(name, value)
    settings.setIfMissing("spark.driver.extraJavaOptions", f"{JAVA_OPTIONS} {QUICK_JAVA}")
    if package is not None:
        # The daemon module is imported before shipped files are on the path.
        settings.set("spark.executorEnv.PYTHONPATH", f"./{Path(package).name}")
    try:
        if SparkContext._active_spark_context is None and SparkContext._gateway is None:
            # Workers elsewhere could not reach a driver on loopback.
            environment = {"SPARK_LOCAL_IP": "127.0.0.1"} if where.is_on_loopback else {}
            launch(settings, log_file, environment, is_given_up)
        process = SparkProcess.of(SparkContext._gateway)
        with (
            _answering(where, process),
            process.blamed(),
            process.killed_when(is_given_up),
            pool_settings() as pools,
        ):
            for name, value in pools.items():
                settings.set(name, (conf or {}).get(name, value))
            context = SparkContext.getOrCreate(settings)
            context.setLogLevel("WARN" if log_file else "ERROR")
        # PySpark's own handler would print a traceback when the process dies.
        vars(context._accumulatorServer)["handle_error"] = lambda *_: None
        return context
    except TxstreamError:
        raise
    except Exception as error:
        message = (
            f"Spark did not start with master {where.url!r}: {reason_in(str(error)) or type(error).__name__}"
        )
        raise ServiceUnavailableError(f"{message}; its log is {log_file}" if log_file else message) from error


def share_path(context: SparkContext) -> None:
    """Let workers on this machine import what the driver can. The folder of a script, for example, is not on
    their path. They find installed packages themselves."""
    if not Master(str(context.master)).is_local:
        return
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")}
    folders = [Path(entry).resolve() for entry in sys.path]
    mine = [str(one) for one in folders if not installed & {one, *one.parents} and one.exists()]
    theirs = context.environment.get("PYTHONPATH", "").split(os.pathsep)
    context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys([*theirs, *mine])))


def create_session(**options: Any) -> SparkSession:
    """Return a SparkSession over `create_context`, which takes the same options."""
    from pyspark.sql import SparkSession

    return SparkSession(create_context(**options))


# A process has at most one SparkContext.
_own = threading.Lock()


@contextlib.contextmanager
def own_context(**options: Any) -> Iterator[SparkContext]:
    """Start a SparkContext in a Java process of its own, and end both after the block, so that the settings
    of one run do not stay for the next. Options and errors are those of `create_context`, and UsageError
    when this process already has a SparkContext."""
    from pyspark import SparkContext

    with contextlib.ExitStack() as stack:
        if _own.acquire(blocking=False):
            stack.callback(_own.release)
            free = SparkContext._active_spark_context is None
        else:
            free = False
        if not free:
            raise UsageError(
                "this process has a SparkSession already, and can have only one: give it to the run "
                "(run(topology, spark)), to several runs if need be, or stop it first"
            )
        stack.callback(_put_back, SparkContext._gateway, SparkContext._jvm)
        SparkContext._gateway = SparkContext._jvm = None
        stack.callback(_end_own)
        yield create_context(**options)


def _end_own() -> None:
    from pyspark import SparkContext

    SparkProcess.of(SparkContext._gateway).end(SparkContext._active_spark_context, SparkContext._gateway)


def _put_back(gateway: Any, jvm: Any) -> None:
    """Put back the Java process of a session that the user has stopped and may start again."""
    from pyspark import SparkContext

    SparkContext._gateway, SparkContext._jvm = gateway, jvm


def _answering(master: Master, process: SparkProcess) -> contextlib.AbstractContextManager[None]:
    """Kill the process if what listens at the master's address does not answer as a master in time."""
    if not master.is_standalone:
        return contextlib.nullcontext()
    seconds = MASTER_SECONDS
    return process.killed_after(
        seconds,
        f"what listens at {master.url} did not answer as a Spark master within {seconds:g} s; compare the "
        "address with the one on the master's web page, and its version with PySpark's",
    )
