"""`--failures-to FILE` writes what failed as JSON, for `tools/rerun_failed.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

_OPTION = "--failures-to"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(_OPTION, metavar="FILE", help="write the failed tests and their first failures as JSON")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(_OPTION)
    # With pytest-xdist, the controller gets the reports of all workers.
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(Path(path)))


class _Failures:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._add(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._add(report)

    def _add(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:  # a test that fails may fail once more when it is taken down
            self._failed.setdefault(report.nodeid, report.longreprtext)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        found = {"status": int(exitstatus), "failed": self._failed}
        self._path.write_text(json.dumps(found), encoding="utf-8")
