<%inherit file="layout.mako"/>
<%namespace file="parts.mako" import="problems"/>
<%def name="title()">Timeline of ${id} · txstream</%def>
<h1>Timeline</h1>
${problems(missing)}
% if failing is not None:
<p class="alert"><a href="${address(id, "batches", str(failing.txid))}">Txid ${failing.txid}</a> is not committed yet: ${counted(failing.failed_attempts, "attempt")} failed\
% if not failing.attempts:
; what they held is not known\
% elif failing.failed_attempts > len(failing.attempts):
; the latest ${len(failing.attempts)} are shown\
% endif
.</p>
% endif
% if drawn is None:
<p>There is no such batch${"" if newer or not batches else " yet"}.</p>
% elif batches:
<p class="soft">Txid ${shown(batches[0].txid)} to ${shown(batches[-1].txid)}, from ${moment(batches[0].first.planned_at)}
to ${moment(batches[-1].first.committed_at)}. A number leads to its batch.</p>
% endif
<p class="paging">
% if older is not None:
<a rel="prev" href="${address(id, "timeline", before=older, limit=limit)}">← older</a>
% endif
% if newer is not None:
<a rel="next" href="${address(id, "timeline", before=newer, limit=limit)}">newer →</a>
<a href="${address(id, "timeline", limit=limit)}">newest</a>
% endif
</p>
% if drawn is not None:
<% chart = drawn.chart %>
<section>
<div class="chart" tabindex="0" role="region" aria-label="Attempts by time; scroll sideways" data-end>
${svg(chart, f"{len(chart.columns)} attempts, by time, over {len(chart.rows)} rows of partitions", lambda txid: address(id, "batches", str(txid))) | n}
% if drawn.longest:
<svg width="${chart.width}" height="86" viewBox="0 0 ${chart.width} 86" role="img" aria-label="Seconds of each txid by step, at most ${seconds(drawn.longest)}">
% for bar in drawn.bars:
<g><title>txid ${bar.txid}: ${", ".join(f"{step} {seconds(number)}" for step, number in bar.seconds.items())}</title>
<% y, whole = 80.0, sum(bar.seconds.values()); scale = 76 / max(whole, drawn.full) %>
% for step, number in bar.seconds.items():
<% height = scale * number; y -= height %>
<rect class="step-${step.replace(" ", "-")}" x="${bar.x + 4}" y="${round(y, 2)}" width="${chart.cell - 8}" height="${round(height, 2)}"/>
% endfor
% if whole > drawn.full:
<path class="cut" d="M${bar.x + 1},22 l${chart.cell - 2},-7 v4 l-${chart.cell - 2},7 z"/>
% endif
</g>
% endfor
</svg>
% endif
</div>
<div class="legend">
% for step in STEPS:
<span><svg viewBox="0 0 24 18"><rect class="step-${step.replace(" ", "-")}" width="24" height="18"/></svg>${step}</span>
% endfor
% if drawn.longest:
<span>at most ${seconds(drawn.longest)} for a txid\
% if drawn.full < drawn.longest:
; bars above ${seconds(drawn.full)} are cut\
% endif
</span>
% endif
</div>
</section>
${legend(compared=False) | n}
<details><summary>The same as a table</summary>
<div class="wide" tabindex="0" role="region" aria-label="Batches">
<table>
<thead><tr><th scope="col" class="n">txid</th><th scope="col">status</th><th scope="col" class="n">attempt</th><th scope="col" class="n">tuples</th><th scope="col" class="n">keys</th><th scope="col">committed</th></tr></thead>
<tbody>
% for one in reversed(batches):
<tr><th scope="row" class="n"><a href="${address(id, "batches", str(one.txid))}">${one.txid}</a></th><td>${one.status}</td><td class="n">${attempt(one.first.attempt)}</td><td class="n">${shown(one.first.tuples)}</td><td class="n">${shown(one.keys)}</td><td>${moment(one.first.committed_at)}</td></tr>
% endfor
</tbody>
</table>
</div>
</details>
% endif
