"""Fail if a JUnit report has a skipped test, or no test at all.

On a developer's machine a test may skip because a server is missing. Where everything is installed, a skip is
a test that silently stopped running. A test that is expected to fail is not a skip. With `--without-mysql`
and `--without-registry`, tests skipped for lack of a MySQL or a schema registry are allowed: these two are
fetched, and their sources may be out of reach. So is what a container's own limits forbid, since nothing that
is installed would change it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from get_mysql import NO_MYSQL
from get_registry import NO_REGISTRY

NO_PID_NAMESPACES: Final = "PID namespaces are not permitted here"
_WITHOUT: Final = {"--without-mysql": NO_MYSQL, "--without-registry": NO_REGISTRY}


def problems(report: str, excused: Iterable[str] = ()) -> list[str]:
    """Return a line for each skipped test in the text of a JUnit report, or one if it has no test.

    `excused` are beginnings of reasons for which tests may skip.
    """
    allowed = (*excused, NO_PID_NAMESPACES)
    root = ElementTree.fromstring(report)  # noqa: S314 - written by our own pytest, a moment ago
    cases = list(root.iter("testcase"))
    if not cases:
        return ["the report has no test at all"]
    return [
        f"skipped: {case.get('classname')}.{case.get('name')}: {reason}"
        for case in cases
        for skipped in case.iter("skipped")
        for reason in [skipped.text or skipped.get("message") or ""]
        if skipped.get("type") != "pytest.xfail" and not any(f": {one};" in reason for one in allowed)
    ]


def main(arguments: list[str]) -> int:
    excused = [_WITHOUT[one] for one in arguments if one in _WITHOUT]
    paths = [one for one in arguments if one not in _WITHOUT]
    if len(paths) != 1:
        print(
            f"usage: check_no_skips.py {' '.join(f'[{one}]' for one in _WITHOUT)} REPORT.xml", file=sys.stderr
        )
        return 2
    try:
        found = problems(Path(paths[0]).read_text(encoding="utf-8"), excused)
    except (OSError, ElementTree.ParseError) as error:
        print(f"pytest's report cannot be read: {error}", file=sys.stderr)
        return 1
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
