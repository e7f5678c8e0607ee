"""`--report-to FILE` writes as JSON what failed and what each file took: tools/lanes.py, rerun_failed.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

_OPTION = "--report-to"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        _OPTION, metavar="FILE", help="write failed tests with their first failures, and each file's time"
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(_OPTION)
    # With pytest-xdist, the controller gets the reports of all workers.
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Report(Path(path)))


class _Report:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed: dict[str, str] = {}
        self._files: dict[str, tuple[int, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._add(report)
        file = report.nodeid.partition("::")[0]
        cases, seconds = self._files.get(file, (0, 0.0))
        self._files[file] = cases + (report.when == "setup"), seconds + report.duration

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._add(report)

    def _add(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:  # a test that fails may fail once more when it is taken down
            self._failed.setdefault(report.nodeid, report.longreprtext)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        found = {"status": int(exitstatus), "failed": self._failed, "files": self._files}
        self._path.write_text(json.dumps(found), encoding="utf-8")
