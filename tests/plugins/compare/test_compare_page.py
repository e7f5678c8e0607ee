"""A comparison's page: what it draws, that it loads nothing, and that nothing overlaps in a browser."""

from __future__ import annotations

import base64
import html as entities
import json
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from txstream.core.errors import PartitionUnavailableError
from txstream.core.fault_points import CrashError, Point
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.examples import word_count
from txstream.plugins.compare.attempts import Made, Timeline
from txstream.plugins.compare.page import charts, html
from txstream.plugins.compare.report import columns_of, figures, true_totals
from txstream.plugins.compare.run import Outcome
from txstream.plugins.compare.schedule import SCHEDULES, Fault, Injector
from txstream.plugins.notebook.attempt_chart import Chart, Fate

FAULTS = (*SCHEDULES["partition"], Fault("crash", 8))
PRIME = chr(8242)
TABLES: dict[str, Any] = {"word_count": {("<b>&",): (14_174_342,)}}


def played(partitions: int = 4, *, stall: float = 0.0, twice: bool = False) -> Outcome:
    """A run of ten txids. Txid 5 fails for partition 0; its replay waits for it or goes on without it."""
    now = [100.0]
    injector = Injector(FAULTS, clock=lambda: now[0])
    outcome = Outcome(Timeline(), injector, TABLES, 64, 12, 2)
    names = [f"lines/{number}" for number in range(partitions)]

    def add(txid: int, fate: Fate, at: range, names: list[str] = names, number: int = 1) -> None:
        ranges = dict.fromkeys(names, (at.start, at.stop))
        attempt = TransactionAttempt(Txid(txid), AttemptId(number))
        outcome.timeline.made.append(Made(attempt, ranges, now[0], now[0] + 0.1, fate))
        now[0] += 0.1

    for txid in range(1, 5):
        add(txid, Fate.COMMITTED, range(10 * txid, 10 * txid + 10))
    with pytest.raises(PartitionUnavailableError):
        injector.emitting(TransactionAttempt(Txid(5), AttemptId(1)), dict.fromkeys(names))
    add(5, Fate.FAILED, range(50, 60))
    add(5, Fate.COMMITTED, range(50, 60), names if stall else names[1:], 2)
    now[0] += stall or 3.0
    assert injector.unreadable() == {}
    if not stall:
        now[0] -= 3.0
        injector.outages[0].ended = now[0]
        add(6, Fate.COMMITTED, range(50, 60), names[:1])
    add(7, Fate.COMMITTED, range(60, 70))
    with pytest.raises(CrashError):
        injector.reached(Point.AFTER_COMMIT, Txid(8), {})
    add(8, Fate.WRITTEN, range(70, 80))
    if twice:
        add(8, Fate.COMMITTED, range(70, 80), number=2)
    return outcome


def chart(outcome: Outcome) -> Chart:
    (drawn,) = charts([outcome])
    return drawn


def cells(drawn: Chart, txid: str) -> list[tuple[int | None, str]]:
    (column,) = (column for column in drawn.columns if column.text == txid)
    return [(cell.home, str(cell.fate)) for cell in drawn.cells if cell.x == column.x]


def test_a_cell_has_the_txid_that_committed_its_tuples() -> None:
    drawn = chart(played())
    assert cells(drawn, "4") == [(4, "committed")] * 4
    assert cells(drawn, "5") == [(6, "failed"), *[(5, "failed")] * 3]
    assert cells(drawn, f"5{PRIME}") == [(5, "committed")] * 3
    assert cells(drawn, "8") == [(8, "committed")] * 4
    assert cells(chart(played(twice=True)), "8") == [(8, "written")] * 4
    assert [mark.text for mark in drawn.rows] == ["0", "1", "2", "3"]
    assert [mark.text for mark in drawn.outages] == ["partition 0 away"]
    assert [mark.text for mark in drawn.deaths] == ["driver dies"]


def test_a_pause_is_as_wide_as_it_was_long_and_the_outage_spans_it() -> None:
    waits, goes_on = chart(played(stall=3.0)), chart(played())
    assert [mark.text for mark in waits.pauses] == ["partition away 3.1 s"]
    assert goes_on.pauses == []
    (pause,), (outage,) = waits.pauses, waits.outages
    assert outage.x < pause.x
    assert outage.x + outage.width == pytest.approx(pause.x + pause.width)
    assert outage.width > 2 * goes_on.outages[0].width


def test_many_partitions_are_lower_and_have_no_numbers() -> None:
    drawn = chart(played(partitions=64))
    assert drawn.row < 12
    assert drawn.height < 64 * 12


def test_all_runs_have_one_time_axis() -> None:
    busy, waits, short = played(), played(stall=3.0), played(partitions=1)
    drawn = charts([busy, waits, short])
    assert len({chart.width for chart in drawn}) == 1
    assert [mark.text for mark in drawn[0].ticks][:2] == ["0.0 s", "0.5 s"]
    assert len({tuple((tick.x, tick.text) for tick in one.ticks) for one in drawn}) == 1
    for one in drawn:
        places = [column.x for column in one.columns]
        assert all(later - earlier >= one.cell for earlier, later in pairwise(places))
    columns = [
        (round(made.began - outcome.timeline.made[0].began, 9), column.x)
        for outcome, chart in zip((busy, waits, short), drawn, strict=True)
        for made, column in zip(outcome.timeline.made, chart.columns, strict=True)
    ]
    together: dict[float, float] = {}
    for moment, x in columns:
        assert together.setdefault(moment, x) == pytest.approx(x)
    assert [x for _, x in sorted(together.items())] == sorted(together.values())


def page(topology: str = "mine:<script>") -> str:
    outcomes = {
        "opaque": played(),
        "transactional": played(stall=3.0),
        "non-transactional": played(partitions=20, twice=True),
    }
    graph = word_count.topology("lines")
    columns = columns_of(graph)
    truth = {"word_count": {("<b>&",): (14_174_000,)}}
    document: dict[str, Any] = {
        "topology": topology,
        "command": "txstream compare 'mine:<script>' --records 2000 --html some/folder/with/a/name.html",
        "version": "1.2.3",
        "date": "2026-01-02 03:04:05+00:00",
        "engine": "this process, without Spark",
        "truth": "the text itself",
        "true_totals": true_totals(truth, columns),
        "semantics": {
            name: figures(outcome, TABLES if "non" not in name else truth, columns)
            for name, outcome in outcomes.items()
        },
    }
    return html(document, FAULTS, outcomes, graph)


def test_the_page_loads_nothing_and_says_what_happened() -> None:
    text = page()
    assert not re.search(r"https?:|\bsrc=(?!.data:)|\bhref=|@import|<script", text)
    for told in (
        "mine:&lt;script&gt;",
        *("opaque: ", "not exact", "driver dies", "txid 6 committed these tuples", "counted twice"),
        *("txstream 1.2.3, 2026-01-02 03:04:05+00:00", "txstream compare &#39;mine:&lt;script&gt;&#39;"),
        "14,174,000 in word_count.n",
        "342 doubled in word_count.n; ",  # as the command's last lines say it
        *("Which to choose", "if batches are to go on", "if a replay must hold the very same records"),
        "scroll each one sideways",
    ):
        assert told in text, told
    assert text.count("<table>") == 1
    assert [*re.findall(r"<th>word_count.\u200bn, (\w+)</th>", text)] == ["lost", "doubled"]


def test_the_page_has_the_graph_of_the_topology() -> None:
    text = entities.unescape(page())
    drawn = re.search(r'src="data:image/svg\+xml;base64,(.*?)"', text)
    assert drawn is not None
    assert ">split<" in base64.b64decode(drawn[1]).decode()
    assert "reads   split" in text  # what `describe` prints, for those who cannot see the image


# Finds what a person would notice: something wider than the window, or texts of one chart that overlap.
LOOK = """
const seen = {};
for (const frame of document.querySelectorAll('iframe')) {
  const page = frame.contentDocument, root = page.documentElement, over = [];
  for (const svg of page.querySelectorAll('.chart svg')) {
    const boxes = [...svg.querySelectorAll('text')].map(
      one => [one.textContent, one.getBoundingClientRect()]);
    const beside = (a, b) => a.right <= b.left || a.bottom - 3 <= b.top;
    boxes.forEach(([text, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
      if (!beside(a, b) && !beside(b, a)) over.push([text, other]);
    }));
  }
  const wide = [...page.querySelectorAll('section, h1, h2, p, table, td, img, li, .legend span')]
    .filter(one => one.getBoundingClientRect().right > root.clientWidth).map(one => one.textContent.trim());
  const figures = page.querySelector('.figures');
  if (figures.scrollWidth > figures.clientWidth) wide.push('the table of the runs');
  seen[frame.width] = {colour: getComputedStyle(page.body).backgroundColor,
    wide: root.scrollWidth - root.clientWidth, over, cut: wide,
    charts: page.querySelectorAll('.chart svg').length, text: page.body.innerText.slice(0, 9000),
    hint: getComputedStyle(page.querySelector('.hint')).display};
}
document.body.textContent = JSON.stringify(seen);
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_narrow_and_a_wide_window_in_a_browser(tmp_path: Path, scheme: str) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("there is no Chromium; type `apt-get install chromium`")
    frames = "".join(
        f'<iframe width="{width}" height="2000" srcdoc="{entities.escape(page(), quote=True)}"></iframe>'
        for width in (390, 1240)
    )
    path = tmp_path / "frames.html"
    path.write_text(
        f"<!doctype html><body>{frames}<script>onload = () => {{{LOOK}}}</script></body>", "utf-8"
    )
    dumped = subprocess.run(
        [
            browser,
            *("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"),
            *("--window-size=1800,2400", f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"),
            *("--virtual-time-budget=10000", "--dump-dom", path.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    seen = json.loads(entities.unescape(re.search(r"<body>(.*)</body>", dumped, re.DOTALL)[1]))  # type: ignore[index]
    for width, found in seen.items():
        assert (found["wide"], found["cut"], found["over"]) == (0, [], []), width
        assert found["colour"] == {"light": "rgb(251, 251, 250)", "dark": "rgb(22, 24, 27)"}[scheme]
        assert found["charts"] == 3
        assert "non-transactional: not exact" in found["text"]
        assert found["hint"] == {"390": "block", "1240": "none"}[width]
