<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Three semantics, the same faults</title>
<style>
${look | n}* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 76rem; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .4rem; }
h2 { font-size: 1rem; margin: 0; }
p { margin: .2rem 0; overflow-wrap: anywhere; }
.soft { color: var(--soft); }
ul { margin: .2rem 0; padding-left: 1.2rem; }
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
.graph { display: block; max-width: 100%; border-radius: 6px; }
.hint { display: none; }
@media (max-width: 52rem) { body { padding: 1rem .6rem 2rem; } section { padding: .7rem; } .hint { display: block; }
  table { font-size: .7rem; } th, td { padding: .1rem 0 .1rem .4rem; } }
</style>
</head>
<body>
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
${legend | n}
<p class="hint soft">The charts are wider than this window: scroll each one sideways.</p>
% for name, chart in charts.items():
<section>
<h2>${name}: <span class="${'good' if runs[name]['exact'] else 'bad'}">${"exact" if runs[name]["exact"] else "not exact"}</span></h2>
<div class="chart">
${chart | n}
</div>
</section>
% endfor
<section>
<h2>The topology</h2>
<img class="graph" src="${graph}" alt="${description}">
</section>
</body>
</html>
