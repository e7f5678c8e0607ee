"""The file that Spark's Java process prints to, so that none of its lines gets between what a terminal or a
notebook shows. There is one for each topology and driver process."""

from __future__ import annotations

import os
import re
from pathlib import Path

_KEPT = 20


def spark_log(folder: Path, topology_id: str) -> Path:
    """The file of a topology's runs in this process."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", topology_id)[:60]
    return folder / f"spark-{name}-{os.getpid()}.log"


def writable_spark_log(folder: Path, topology_id: str) -> Path | None:
    """As `spark_log`, but create the file and delete old logs. None if the file cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = spark_log(folder, topology_id)
        file.touch()
    except OSError:
        return None
    prune_logs(folder)
    return file


def prune_logs(folder: Path) -> None:
    """Delete all but the newest logs, because every run leaves its own."""
    for pattern in ("spark-*.log", "txstream-*.log"):
        found = [(path.stat().st_mtime, path) for path in folder.glob(pattern)]
        for _, path in sorted(found)[:-_KEPT]:
            path.unlink(missing_ok=True)
