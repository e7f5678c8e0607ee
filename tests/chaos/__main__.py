"""`python -m chaos`: plays rounds and reports them, as a table or as JSON. Status 1: one was not exact."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from support.runs import SPARK_STARTS_SOONER, keep_sparks_classes

from chaos.faults import FREEZE, KILL, TARGETS
from chaos.rounds import InexactRoundError, Round, Rounds
from chaos.site import Site


def play(folder: Path, seed: int, numbers: range, turn: int = 1) -> dict[str, Any]:
    """Play these rounds, up to one that is not exact or until Ctrl-C; return their report."""
    os.environ.update(SPARK_STARTS_SOONER)
    keep_sparks_classes()
    begun = time.monotonic()
    played: list[Round] = []
    problem = None
    with Site(folder) as site:
        rounds = Rounds(site, seed, turn)
        try:
            for number in numbers:
                played.append(rounds.play(number))
                print(played[-1], file=sys.stderr, flush=True)
            rounds.check()
        except KeyboardInterrupt:
            print("interrupted: the report is of the rounds before", file=sys.stderr)
        except InexactRoundError as error:
            problem = str(error)
        return {
            "exact": problem is None,
            "problem": problem,
            "seed": seed,
            "rounds": len(played),
            "seconds": round(time.monotonic() - begun, 1),
            **_totals(played),
            "ended_by_themselves": dict(site.ended),
        }


def _totals(played: Sequence[Round]) -> dict[str, Any]:
    struck = Counter((fault.how, fault.target) for one in played for fault in one.faults)
    recovered = dict.fromkeys(TARGETS, 0.0)
    for one in played:
        for fault, seconds in zip(one.faults, one.recoveries, strict=True):
            recovered[fault.target] = max(seconds, recovered[fault.target])
    return {
        "batches": sum(one.batches for one in played),
        "replays": sum(one.replays for one in played),
        "longest_pause_seconds": max((one.pause for one in played), default=0.0),
        "longest_round_seconds": max((one.seconds for one in played), default=0.0),
        "killed": {target: struck[KILL, target] for target in TARGETS},
        "frozen": {target: struck[FREEZE, target] for target in TARGETS},
        "longest_recovery_seconds": recovered,
    }


def _show(report: dict[str, Any]) -> None:
    columns = ("killed", "frozen", "longest_recovery_seconds")
    table = Table("", "killed", "frozen", "longest recovery (s)")
    for target in TARGETS:
        table.add_row(target, *(f"{report[column][target]:g}" for column in columns))
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    for name, value in report.items():
        if name not in columns:
            console.print(f"{name.replace('_', ' ')}: {value}", markup=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="the first round's number")
    parser.add_argument("--turn", type=int, default=1, metavar="ROUNDS", help="so many of one semantics")
    parser.add_argument("--folder", type=Path, help="an empty one for data and logs, which are kept")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="txstream-chaos-"))
    print(f"seed {given.seed}, folder {folder}", file=sys.stderr)
    numbers = range(given.first, given.first + given.rounds)
    report = play(folder, given.seed, numbers, given.turn)
    if given.json:
        print(json.dumps(report, indent=1))
    else:
        _show(report)
    return 0 if report["exact"] else 1


if __name__ == "__main__":
    sys.exit(main())
