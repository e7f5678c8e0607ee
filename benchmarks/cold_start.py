"""From the start of a process to its first commit: txstream and Structured Streaming, in turns.

    python benchmarks/cold_start.py                # five turns of each

Each turn is a new process that starts a Spark of its own and processes one batch of 100,000 records of the
workload of `beside_peers.py`. The output has medians, their ratio, and when the steps of a start begin. Spark
starts in parallel with what follows the election; from "starting Spark" on, the rest waits for it. CPU time
is that of the process and everything that it has started, until its batch is committed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from beside_peers import OURS, STRUCTURED, Sitting, own_server
from peers.workload import make_topic

from txstream.plugins.local.embedded import embedded

RECORDS = 100_000
FIGURES = ("first_commit_seconds", "cpu_seconds")


def turn(sitting: Sitting, script: str) -> dict[str, Any]:
    options = {"records": RECORDS, "batch": RECORDS, "runs": 1, "variant": "columnar"}
    with sitting.contender(script, "catchup", "t", **options) as reports:
        (done,) = reports
    return done


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {STRUCTURED: [], OURS: []}
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txstream-bench-")))
        server, database = own_server(directory)
        stack.callback(server.close)
        services = stack.enter_context(embedded(directory))
        sitting = Sitting(directory, services.kafka, services.zookeeper, database)
        make_topic(services.kafka, "t", RECORDS)
        for _ in range(options.turns):
            for script, turns in found.items():
                turns.append(turn(sitting, script))
    if options.json:
        print(json.dumps(found, indent=2))
    medians = {
        script: {figure: statistics.median(one[figure] for one in turns) for figure in FIGURES}
        for script, turns in found.items()
    }
    for script, median in medians.items():
        print(
            f"{script:<22}{median['first_commit_seconds']:6.2f} s to the first commit, "
            f"{median['cpu_seconds']:6.2f} s of CPU"
        )
    ratios = (medians[OURS][figure] / medians[STRUCTURED][figure] for figure in FIGURES)
    print("txstream takes {:.2f} of its time, {:.2f} of its CPU time".format(*ratios))
    print("steps of txstream's start, when they begin:")
    for step in found[OURS][0]["began"]:
        print(f"  {statistics.median(one['began'].get(step, 0.0) for one in found[OURS]):6.2f} s  {step}")
    print("and of its first batch, how long they take:")
    for step in found[OURS][0]["first_batch"]:
        print(f"  {statistics.median(one['first_batch'][step] for one in found[OURS]):6.2f} s  {step}")
    return 0 if all(one["exact"] for turns in found.values() for one in turns) else 1


if __name__ == "__main__":
    raise SystemExit(main())
