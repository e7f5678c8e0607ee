"""A comparison as one page that loads nothing else. `notebook.attempt_chart` draws the attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from mako.template import Template

from txstream.core.wording import counted, shown
from txstream.plugins.compare.report import in_a_sentence, side_by_side
from txstream.plugins.compare.run import Outcome
from txstream.plugins.notebook import attempt_chart
from txstream.plugins.notebook.attempt_chart import Chart, Run
from txstream.plugins.notebook.topology import as_image

if TYPE_CHECKING:
    from txstream.api.topology import Topology


def charts(outcomes: Sequence[Outcome]) -> list[Chart]:
    """Lay out runs on one time axis."""
    return attempt_chart.charts(
        [
            Run(
                outcome.timeline.settled(),
                outcome.injector.outages,
                [(at, "driver dies") for fault, at in outcome.injector.happened if fault.fault == "crash"],
            )
            for outcome in outcomes
        ]
    )


def drawn_charts(outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    """Return the chart of each run as SVG."""
    return {
        name: attempt_chart.svg(
            chart,
            f"{name}: {counted(len(chart.columns), 'attempt')}, by time, over "
            f"{counted(len(chart.rows), 'partition')}",
        )
        for name, chart in zip(outcomes, charts(list(outcomes.values())), strict=True)
    }


def html(
    document: Mapping[str, Any], faults: Sequence[object], outcomes: Mapping[str, Outcome], topology: Topology
) -> str:
    """Return the page. `document` is the comparison as JSON; `faults` are shown as text."""
    template = Template(  # noqa: S702 - every expression is escaped
        text=files("txstream.plugins.compare").joinpath("page.html.mako").read_text(encoding="utf-8"),
        default_filters=["h"],
        strict_undefined=True,
    )
    runs = document["semantics"]
    page: str = template.render(
        document=document,
        faults=faults,
        runs=runs,
        charts=drawn_charts(outcomes),
        look=attempt_chart.look(),
        legend=attempt_chart.legend(compared=True),
        rows=side_by_side(runs),
        told={name: in_a_sentence(found) for name, found in runs.items()},
        graph=as_image(topology),
        description=topology.describe(),
        shown=shown,
    )
    return page
