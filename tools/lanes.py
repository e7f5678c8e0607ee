"""Run a lane of the tests and say what it cost: `make test`, `make soak`, and the end of `.ci/run`.

    python tools/lanes.py gate [ARGUMENTS OF PYTEST]      # what every change waits for
    python tools/lanes.py long [...]                      # proofs of proofs, second servers, second rounds
    python tools/lanes.py affected [...]                  # of the long lane, what tools/affected.py chooses
    python tools/lanes.py --record gate                   # also notes in tests/durations.json what files took

The gate has budgets in pyproject.toml: of cases, and of each folder's seconds, over all processes. They
are about twice what the folder took when they were set, since a machine's speed varies. A folder that takes
more fails the run, as does a case too many.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import affected
from durations import ROOT, record

LANES: Final = {"gate": "not soak", "long": "soak", "affected": "soak"}
PROCESSES: Final = 5  # on two cores: more than half of a test's time it waits for servers
NO_TESTS: Final = 5  # pytest's exit status


@dataclass(frozen=True)
class Budget:
    """What the gate may cost: cases in all, and seconds by folder below `tests/`."""

    cases: int
    seconds: Mapping[str, float]

    @classmethod
    def read(cls, pyproject: Path = ROOT / "pyproject.toml") -> Budget:
        """Return the budget of the gate."""
        return cls(**tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["txstream"]["gate"])

    def judge(self, files: Mapping[str, tuple[int, float]]) -> tuple[list[str], bool]:
        """Return a line for each folder, and whether nothing cost too much."""
        lines, good = [], True
        for folder in sorted({file.split("/")[1] for file in files} | set(self.seconds)):
            own = [found for file, found in files.items() if file.split("/")[1] == folder]
            took, limit = sum(seconds for _, seconds in own), self.seconds.get(folder, 0.0)
            good = good and took <= limit
            over = "" if took <= limit else "  OVER ITS BUDGET"
            lines.append(
                f"tests/{folder + '/':13}{sum(n for n, _ in own):6} cases {took:7.0f} s of {limit:5.0f}{over}"
            )
        cases = sum(n for n, _ in files.values())
        over = "" if cases <= self.cases else "  OVER THEIR BUDGET"
        lines.append(f"in all             {cases:6} cases of {self.cases}{over}")
        return lines, good and cases <= self.cases


def run(lane: str, arguments: Sequence[str], files: Sequence[str], report: Path) -> int:
    """Run pytest on a lane; return its exit status."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        str(PROCESSES),
        "-m",
        LANES[lane],
        # In one word, or pytest takes a report that is already there for the path of a test.
        f"--report-to={report}",
        # No percentages: each process has a collection of its own.
        "-o",
        "console_output_style=classic",
    ]
    timeout = [] if lane == "gate" else ["--timeout", "7200"]
    return subprocess.run([*command, *timeout, *arguments, *files], cwd=ROOT, check=False).returncode


def main(typed: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="note what each file took")
    parser.add_argument("--report-to", type=Path, help="where pytest's report goes")
    parser.add_argument("lane", choices=LANES)
    given, arguments = parser.parse_known_args(typed)
    files: list[str] = []
    left: list[str] = []
    if given.lane == "affected":
        files, left = affected.affected()
        if not files:
            print("The commits of the last two days touch nothing that a test of the long lane proves.")
            return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = given.report_to or Path(folder, "report.json")
        status = run(given.lane, arguments, files, path)
        report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    took, ended = report.get("files", {}), sorted(report.get("ended", {}).values())
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines, good = Budget.read().judge(took) if given.lane == "gate" else ([], True)
    print(*lines, sep="\n")
    print(
        f"{given.lane}: {time.monotonic() - began:.0f} s, {used.ru_utime + used.ru_stime:.0f} CPU seconds; "
        f"its processes were done after {', '.join(f'{seconds:.0f}' for seconds in ended)} s",
        flush=True,
    )
    if left:
        print(f"{len(left)} more files prove what was changed; `make soak` runs them:", *left, sep="\n  ")
    if given.record and took:
        whole = given.lane != "affected" and not arguments
        record("gate" if given.lane == "gate" else "long", took, whole=whole)
    return status or (0 if good else 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
