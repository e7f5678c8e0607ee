"""Fail if a JUnit report has a skipped test, or no test at all.

On a developer's machine a test may skip because a server is missing. Where everything is installed, a skip is
a test that silently stopped running. A test that is expected to fail is not a skip. With `--without-mysql`,
tests skipped for lack of a MySQL are counted and allowed, because it is the one server not in Debian's
releases. So is what a container's own limits forbid, since nothing that is installed would change it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from get_mysql import NO_MYSQL

NO_PID_NAMESPACES: Final = "PID namespaces are not permitted here"
_WITHOUT = "--without-mysql"


def problems(report: str, *, without_mysql: bool = False) -> list[str]:
    """Return a line for each skipped test in the text of a JUnit report, or one if it has no test."""
    root = ElementTree.fromstring(report)  # noqa: S314 - written by our own pytest, a moment ago
    cases = list(root.iter("testcase"))
    if not cases:
        return ["the report has no test at all"]
    return [
        f"skipped: {case.get('classname')}.{case.get('name')}: {reason}"
        for case in cases
        for skipped in case.iter("skipped")
        for reason in [skipped.text or skipped.get("message") or ""]
        if skipped.get("type") != "pytest.xfail"
        and not (without_mysql and f": {NO_MYSQL};" in reason)
        and f": {NO_PID_NAMESPACES};" not in reason
    ]


def main(arguments: list[str]) -> int:
    without_mysql = arguments[:1] == [_WITHOUT]
    paths = arguments[1:] if without_mysql else arguments
    if len(paths) != 1:
        print(f"usage: check_no_skips.py [{_WITHOUT}] REPORT.xml", file=sys.stderr)
        return 2
    try:
        found = problems(Path(paths[0]).read_text(encoding="utf-8"), without_mysql=without_mysql)
    except (OSError, ElementTree.ParseError) as error:
        print(f"pytest's report cannot be read: {error}", file=sys.stderr)
        return 1
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
