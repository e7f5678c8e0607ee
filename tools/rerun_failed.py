"""Run failed tests of real services once more, each by itself, and show which of them are flaky.

It reads what pytest wrote with `--report-to`. A test that passes by itself is printed as FLAKY, with its
first failure: mend it next. The status is 0 if all that failed are flaky, and they are at most two. Tests
without services are not run again: nothing outside could have been slow.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

MOST = 2
REAL_SERVICES = ("tests/integration/", "tests/acceptance/", "tests/real_inputs/")
_TESTS_FAILED = 1  # pytest's exit status; any other says that not all tests were run


def judge(status: int, failed: dict[str, str], passes: Callable[[str], bool]) -> tuple[bool, list[str]]:
    """Return whether all failures are flaky and few, and the lines to print. `passes` runs one test."""
    if status != _TESTS_FAILED or not failed:
        return False, [f"pytest ended with status {status}: there is no failed test to run again"]
    others = [test for test in failed if not test.startswith(REAL_SERVICES)]
    if others:
        return False, [f"not run again, because it needs no service: {test}" for test in others]
    if len(failed) > MOST:
        return False, [f"{len(failed)} tests failed, more than {MOST}: none is run again"]
    lines, all_flaky = [], True
    for test, first_failure in failed.items():
        is_flaky = passes(test)
        all_flaky = all_flaky and is_flaky
        lines += [f"FLAKY {test}", first_failure] if is_flaky else [f"failed twice: {test}"]
    return all_flaky, lines


def _passes(test: str) -> bool:
    return subprocess.run([sys.executable, "-m", "pytest", "-m", "", test], check=False).returncode == 0


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: rerun_failed.py REPORT.json", file=sys.stderr)
        return 2
    try:
        found = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    except OSError as error:
        print(f"the tests were not run, or not to their end: {error}", file=sys.stderr)
        return 1
    all_flaky, lines = judge(found["status"], found["failed"], _passes)
    print(*lines, sep="\n", flush=True)
    return 0 if all_flaky else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
