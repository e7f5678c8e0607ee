"""Reads a planned range in another process, as an executor's worker does.

That process inherits only the import path, the environment and what was pickled.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txstream.api.spouts import SpoutContext
from txstream.core.errors import TxstreamError
from txstream.core.transaction import TransactionAttempt

_SECONDS = 120.0
_PROGRAM = "from txstream.plugins.proof.spout_suite.process import main; main()"


def pickled(value: Any) -> bytes:
    """Pickle a value as the engine does: definitions in importable modules by name, all others by value."""
    from pyspark import cloudpickle  # the other process needs only pickle, and starts faster without Spark

    return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]  # pyspark's copy


def read_elsewhere(
    source: bytes, context: SpoutContext, attempt: TransactionAttempt, metas: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each planned partition, read by a new interpreter from the pickled source. Raises
    TxstreamError with that process's traceback when the process fails."""
    with tempfile.TemporaryDirectory(prefix="txstream-") as folder:
        order, answer = Path(folder, "order"), Path(folder, "answer")
        order.write_bytes(pickled((source, context, attempt, dict(metas))))
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
        environment["PYTHONPATH"] = os.pathsep.join(path or os.curdir for path in sys.path)
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(order), str(answer)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        if done.returncode != 0:
            raise TxstreamError(f"the process ended with status {done.returncode}:\n{done.stderr[-4000:]}")
        rows: dict[str, list[dict[str, Any]]] = pickle.loads(answer.read_bytes())  # noqa: S301 - our own
        return rows


def main() -> None:
    """The other process: read the order's file and write the answer's file."""
    order, answer = map(Path, sys.argv[1:])
    source, context, attempt, metas = pickle.loads(order.read_bytes())  # noqa: S301 - of our own process
    emitter = pickle.loads(source).emitter(context)  # noqa: S301 - likewise
    try:
        rows = {
            partition: [row for batch in emitter.emit(attempt, partition, meta) for row in batch.to_pylist()]
            for partition, meta in metas.items()
        }
    finally:
        emitter.close()
    answer.write_bytes(pickle.dumps(rows))
    # Exit as Spark's workers do: at a normal exit, an Arrow thread that still reads would abort the process.
    os._exit(0)
