<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Three semantics, the same faults</title>
<style>
:root { color-scheme: light dark; --page: #fbfbfa; --card: #fff; --text: #1c1e21; --soft: #62676d; --line: #dfe1e4;
  --good: #19763a; --bad: #c0272d; --away: #f3b23c; --ink: #14161a;
  --c0: #8ecae6; --c1: #f2c6a0; --c2: #a8d5a2; --c3: #d3b8e6; --c4: #f0e08a; --c5: #f4b3c2; --c6: #a6dcd6; }
@media (prefers-color-scheme: dark) {
  :root { --page: #16181b; --card: #1f2226; --text: #e8eaed; --soft: #a2a8b0; --line: #383c42; --good: #5dd48a;
    --bad: #ff7a76; --away: #b97f14; --ink: #f4f5f7;
    --c0: #2f6f8f; --c1: #8f5a2c; --c2: #3d7a45; --c3: #6d4a8f; --c4: #7d6f1f; --c5: #8f3f57; --c6: #2d7770; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 76rem; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .4rem; }
h2 { font-size: 1rem; margin: 0; }
p { margin: .2rem 0; overflow-wrap: anywhere; }
.soft { color: var(--soft); }
ul { margin: .2rem 0; padding-left: 1.2rem; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: 1rem 0; font-size: .87rem; color: var(--soft); }
.legend svg { width: 1.5em; height: 1.1em; margin-right: .4em; vertical-align: -.2em; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 1rem; margin: 1rem 0; }
.chart, .figures, pre { overflow-x: auto; }
.chart svg { display: block; }
.good { color: var(--good); } .bad { color: var(--bad); }
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .1rem .9rem; text-align: right; vertical-align: bottom; font-variant-numeric: tabular-nums; }
th:first-child { padding-left: 0; text-align: left; font-weight: 400; color: var(--soft); }
thead th { border-bottom: 1px solid var(--line); }
code, pre { font: .85rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
pre { margin: 0; }
.graph { display: block; max-width: 100%; background: #fff; border-radius: 6px; }
.hint { display: none; }
svg text { font: 11px system-ui, "DejaVu Sans", sans-serif; fill: var(--soft); }
svg .home { fill: var(--ink); text-anchor: middle; }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
svg .lane { stroke: var(--line); }
svg .away { fill: var(--away); } svg .alert { fill: var(--bad); font-weight: 600; }
svg .death { stroke: var(--bad); stroke-width: 2; stroke-dasharray: 4 2; }
svg .hatch { stroke: var(--text); stroke-width: 1.4; opacity: .55; }
svg .twice { fill: none; stroke: var(--bad); stroke-width: 2.5; }
% for number in range(7):
.c${number} { fill: var(--c${number}); }
% endfor
@media (max-width: 52rem) { body { padding: 1rem .6rem 2rem; } section { padding: .7rem; } .hint { display: block; }
  table { font-size: .7rem; } th, td { padding: .1rem 0 .1rem .4rem; } }
</style>
</head>
<body>
<svg width="0" height="0" aria-hidden="true" style="position:absolute"><defs>
<pattern id="failed" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs></svg>
<h1>Three semantics, the same faults</h1>
<p>${document["topology"]}: ${shown(next(iter(runs.values()))["records"])} records, read by each run anew. Truth, by
${document["truth"]}:
% if document["true_totals"]:
${", ".join(f"{shown(total)} in {column}" for column, total in document["true_totals"].items())}, summed over all rows.
% else:
no column is a sum; rows are compared.
% endif
</p>
<p class="soft">Batches ran in ${document["engine"]}; ZooKeeper, source and database are real.</p>
<p class="soft">txstream ${document["version"]}, ${document["date"]}: <code>${document["command"]}</code></p>
% if faults:
<ul>
% for fault in faults:
<li>${fault}</li>
% endfor
</ul>
% else:
<p>No faults.</p>
% endif
<section>
<h2>Side by side</h2>
<div class="figures">
<table>
<thead><tr><th></th>
% for name in runs:
<th>${name}</th>
% endfor
</tr></thead>
% for words, values in rows:
<tr><th>${words.replace('.', '.' + chr(8203))}</th>
% for value in values:
<td class="${'' if not isinstance(value, bool) else 'good' if value else 'bad'}">${shown(value)}</td>
% endfor
</tr>
% endfor
</table>
</div>
<ul>
% for name, sentence in told.items():
<li>${name}: <span class="${'good' if runs[name]['exact'] else 'bad'}">${sentence}</span></li>
% endfor
</ul>
</section>
<section>
<h2>Which to choose</h2>
<ul>
<li><b>opaque</b> if batches are to go on while a partition cannot be read: a replay leaves it out, and its records
come in a later txid. It fits most topologies.</li>
<li><b>transactional</b> if a replay must hold the very same records, for example because somebody else has seen the
batch: it waits until every partition can be read again. Its rows of state are smaller.</li>
<li><b>non-transactional</b> only if totals may be wrong after a failure.</li>
</ul>
</section>
<div class="legend">
<span><svg viewBox="0 0 24 18"><rect class="c1" width="12" height="18"/><rect class="c2" x="12" width="12" height="18"/></svg>a column is an attempt of a txid, a row a partition; colour and number: the txid that committed the tuples</span>
<span><svg viewBox="0 0 24 18"><rect class="c0" width="24" height="18"/><rect fill="url(#failed)" width="24" height="18"/></svg>the attempt failed, or was dropped</span>
<span><svg viewBox="0 0 24 18"><rect class="c4" x="2" y="2" width="20" height="14"/><rect class="twice" x="2" y="2" width="20" height="14"/></svg>counted twice</span>
<span><svg viewBox="0 0 24 18"><rect class="away" opacity=".35" width="24" height="18"/></svg>a partition is away</span>
<span><svg viewBox="0 0 24 18"><line class="death" x1="12" y1="0" x2="12" y2="18"/></svg>the driver dies, the next takes over</span>
<span>all charts have one time axis, which is wider where more attempts began</span>
</div>
<p class="hint soft">The charts are wider than this window: scroll each one sideways.</p>
% for name, chart in charts.items():
<section>
<h2>${name}: <span class="${'good' if runs[name]['exact'] else 'bad'}">${"exact" if runs[name]["exact"] else "not exact"}</span></h2>
<div class="chart">
<svg width="${chart.width}" height="${chart.height}" viewBox="0 0 ${chart.width} ${chart.height}" role="img"
 aria-label="${name}: ${len(chart.columns)} attempts, by time, over ${len(chart.rows)} partitions">
% for away in chart.outages:
<rect class="away" opacity=".16" x="${away.x}" y="${chart.top - 24}" width="${away.width}" height="${chart.row * len(chart.rows) + 24}"/>
% if away.y is not None:
<rect class="away" opacity=".45" x="${away.x}" y="${away.y}" width="${away.width}" height="${chart.row}"/>
% endif
<text x="${away.x + 2}" y="${chart.top - 28}">${away.text}</text>
% endfor
% for row in chart.rows:
<line class="lane" x1="${row.x}" x2="${row.x + row.width}" y1="${row.y + chart.row / 2}" y2="${row.y + chart.row / 2}"/>
<text class="end" x="${row.x - 6}" y="${row.y + chart.row / 2 + 4}">${row.text}</text>
% endfor
% for pause in chart.pauses:
<text class="middle" x="${pause.x + pause.width / 2}" y="${chart.top - 6}">${pause.text}</text>
% endfor
% for column in chart.columns:
<text class="middle" x="${column.x + chart.cell / 2}" y="${chart.top - 6}">${column.text}</text>
% endfor
% for cell in chart.cells:
<g><title>${cell.title}</title><rect class="c${cell.colour}" x="${cell.x + 1}" y="${cell.y + 1}" width="${chart.cell - 2}" height="${chart.row - 2}" rx="2"/>
% if cell.fate in ("failed", "dropped", "open"):
<rect fill="url(#failed)" x="${cell.x + 1}" y="${cell.y + 1}" width="${chart.cell - 2}" height="${chart.row - 2}"/>
% elif cell.fate == "written":
<rect class="twice" x="${cell.x + 2}" y="${cell.y + 2}" width="${chart.cell - 4}" height="${chart.row - 4}"/>
% endif
% if cell.home is not None and chart.row > 12:
<text class="home" x="${cell.x + chart.cell / 2}" y="${cell.y + chart.row / 2 + 4}">${cell.home}</text>
% endif
</g>
% endfor
% for death in chart.deaths:
<line class="death" x1="${death.x}" x2="${death.x}" y1="${chart.top - 38}" y2="${chart.top + chart.row * len(chart.rows)}"/>
<text class="alert middle" x="${death.x}" y="${chart.top - 42}">${death.text}</text>
% endfor
% for tick in chart.ticks:
<text x="${tick.x}" y="${tick.y + 15}">${tick.text}</text>
% endfor
</svg>
</div>
</section>
% endfor
<section>
<h2>The topology</h2>
% if graph:
<img class="graph" src="${graph}" alt="${description}">
% else:
<pre>${description}</pre>
% endif
</section>
</body>
</html>
