"""The dashboard and the alert rules name metrics that exist, with labels that they have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from support.lists import each

pytest.importorskip("prometheus_client")

from support.guide import DOCS

from tracked_wheel import ROOT
from txstream.plugins.monitoring.catalog import CATALOG

RULES = ROOT / "deploy" / "prometheus" / "txstream-alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "txstream-dashboard.json"
GUIDE = (DOCS / "monitoring.md").read_text(encoding="utf-8")
ALERTS = re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8"))
ALWAYS = {"topology", "le", "job", "instance"}


def expressions() -> Iterator[str]:
    yield from re.findall(r"^ +expr: (.+)$", RULES.read_text(encoding="utf-8"), re.MULTILINE)
    document = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in document["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    yield document["templating"]["list"][1]["query"]


def named(text: str) -> set[str]:
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"\btxstream_\w+", text)}


@each("expression", list(expressions()))
def test_every_metric_and_label_exists(expression: str) -> None:
    names = named(expression)
    assert names <= {*CATALOG}
    labels = ALWAYS.union(*(CATALOG[name].labels for name in names))
    for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        assert {label.strip() for label in group.split(",")} <= labels


def test_the_dashboard_and_the_guide_have_every_metric() -> None:
    assert set().union(*map(named, expressions())) == {*CATALOG}
    assert named(GUIDE) >= {*CATALOG}


@each("alert", ALERTS)
def test_every_alert_has_its_section_with_a_command_and_a_view(alert: str) -> None:
    section = GUIDE.partition(f"### {alert}\n")[2].partition("\n### ")[0]
    assert re.search(r"^txstream \w+", section, re.MULTILINE), alert
    views = re.findall(r"`/topologies/ID(/[^`]*)?`", section.partition("View: ")[2])
    assert views, alert
    known = {"", "/timeline", "/source", "/state", "/failures", "/trust", "/graph", "/batches/7"}
    assert {*views} <= known
    assert f"docs/monitoring.md#{alert.lower()}\n" in RULES.read_text(encoding="utf-8")


def test_the_rules_are_whole() -> None:
    """Each has what Prometheus wants; where promtool is installed, it is asked, too."""
    for rule in RULES.read_text(encoding="utf-8").split("- alert: ")[1:]:
        for key in ("expr: ", "labels: {severity: ", "annotations:", "summary: "):
            assert rule.count(key) == 1, rule
        assert rule.count("(") == rule.count(")"), rule
    if shutil.which("promtool") is not None:
        command = ["promtool", "check", "rules", str(RULES)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
