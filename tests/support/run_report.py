"""`--report-to FILE` writes as JSON what failed, what each file took, and how long each process worked:
tools/lanes.py, rerun_failed.py. What a file takes is its collection, too: most of it in files of quick tests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_OPTION = "--report-to"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        _OPTION, metavar="FILE", help="write failed tests with their first failures, and each file's time"
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(_OPTION)
    if not path:
        return
    config.pluginmanager.register(_Collecting())
    # With pytest-xdist, the controller gets the reports of all workers.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Report(Path(path)))


class _Collecting:
    """The first report of a file's tests says how long it took to collect them."""

    def __init__(self) -> None:
        self._took: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        began = time.perf_counter()
        report = yield
        if isinstance(collector, pytest.Module):
            self._took[collector.nodeid] = time.perf_counter() - began
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        report.__dict__["collecting"] = self._took.pop(item.nodeid.partition("::")[0], 0.0)
        return report


class _Report:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._began = time.monotonic()
        self._failed: dict[str, str] = {}
        self._files: dict[str, tuple[int, float]] = {}
        self._ended: dict[str, float] = {}  # process -> seconds until its last test was over

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._add(report)
        file = report.nodeid.partition("::")[0]
        cases, seconds = self._files.get(file, (0, 0.0))
        self._files[file] = cases + (report.when == "setup"), seconds + report.duration + report.collecting
        self._ended[getattr(report, "worker_id", "")] = round(time.monotonic() - self._began, 1)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._add(report)

    def _add(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:  # a test that fails may fail once more when it is taken down
            self._failed.setdefault(report.nodeid, report.longreprtext)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        found = {
            "status": int(exitstatus),
            "failed": self._failed,
            "files": self._files,
            "ended": self._ended,
        }
        self._path.write_text(json.dumps(found), encoding="utf-8")
