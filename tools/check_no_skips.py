"""Fail if a JUnit report has a skipped test, or no test at all.

On a developer's machine a test may skip for want of a server; where everything is installed, a skip is a test
that silently stopped running. A test that is expected to fail is not a skip.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree


def problems(report: str) -> list[str]:
    """One line for each skipped test in the text of a JUnit report, and one if the report has no test."""
    root = ElementTree.fromstring(report)  # noqa: S314 - written by our own pytest, a moment ago
    cases = list(root.iter("testcase"))
    if not cases:
        return ["the report has no test at all"]
    return [
        f"skipped: {case.get('classname')}.{case.get('name')}: {skipped.text or skipped.get('message')}"
        for case in cases
        for skipped in case.iter("skipped")
        if skipped.get("type") != "pytest.xfail"
    ]


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: check_no_skips.py REPORT.xml", file=sys.stderr)
        return 2
    try:
        found = problems(Path(arguments[0]).read_text(encoding="utf-8"))
    except (OSError, ElementTree.ParseError) as error:
        print(f"pytest's report cannot be read: {error}", file=sys.stderr)
        return 1
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
