"""The file that Spark's Java process prints to, so that none of its lines gets between what a terminal or a
notebook shows. There is one for each topology and driver process."""

from __future__ import annotations

import os
import re
from pathlib import Path

_KEPT = 20
_PREAMBLE = ("WARNING:", "NOTE:", "Using Spark's ", "Setting default log level", "To adjust logging level")
# `Exception in thread "main" org.apache.spark.SparkException: Master must ...`, and Py4J's `: java.io...`
_THROWN = re.compile(r'(?:Exception in thread "[^"]*" |Caused by: |: )?(?:[\w$]+\.)+([\w$]+): (.+)')


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


def reason_in(text: str) -> str | None:
    """Return why Java gave up, from what it printed: the first exception and its innermost cause; without
    any, the first line that is not always there. None if there is no such line."""
    lines = [line.strip() for line in text.splitlines()]
    thrown = [(line, match) for line in lines if (match := _THROWN.fullmatch(line)) is not None]
    if not thrown:
        return next((line for line in lines if line and not line.startswith(_PREAMBLE)), None)
    reasons = [f"{thrown[0][1][1]}: {thrown[0][1][2]}"]
    causes = [match for line, match in thrown if line.startswith("Caused by: ")]
    if causes:
        reasons.append(f"{causes[-1][1]}: {causes[-1][2]}")
    return ", caused by ".join(f"{reason:.300}" for reason in dict.fromkeys(reasons))
