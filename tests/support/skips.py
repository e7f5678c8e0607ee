"""What a test run says at its end about the tests that this machine could not run."""

from __future__ import annotations

from collections import Counter
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a line for each reason: how many tests were skipped, and what to type to run them."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.section("skipped")
    for reason, tests in reasons.most_common():
        terminalreporter.line(f"{tests} {'test' if tests == 1 else 'tests'}: {reason}")
    if "not soak" in terminalreporter.config.option.markexpr:
        terminalreporter.line(
            "Second servers and rounds, and wrong implementations, were left out: type `make soak`."
        )
