<%inherit file="layout.mako"/>
<%def name="title()">Graph of ${id} · txstream</%def>
<% found, slowest = graph["components"], graph["slowest"] %>\
<h1>Graph</h1>
% if not found:
<p>Its driver has noted no batch yet.</p>
% else:
<p>Tuples and seconds of <a href="${address(id, "batches", str(graph["txid"]))}">txid ${shown(graph["txid"])}</a>, which its driver
noted at ${moment(graph["at"])}. The slowest task is task ${slowest["task"]} of <b>${slowest["component"]}</b>.</p>
% if graph["edges"]:
<section><div class="wide" tabindex="0" role="region" aria-label="Drawing of the graph">${flow(graph) | n}</div></section>
% endif
<section>
<h2>Components</h2>
<div class="wide" tabindex="0" role="region" aria-label="Tasks by component">
<table class="cards">
<thead><tr><th scope="col">component</th><th scope="col" class="n">tasks</th><th scope="col" class="n">tuples</th><th scope="col" class="n">seconds</th><th scope="col" class="n">longest task</th><th scope="col" class="n">its seconds</th><th scope="col">on</th></tr></thead>
<tbody>
% for one in found:
<tr><th scope="row">${one["component"]}</th><td data-label="tasks" class="n">${one["tasks"]}</td><td data-label="tuples" class="n">${shown(one["tuples"])}</td><td data-label="seconds" class="n">${f'{one["seconds"]:.3f}'}</td><td data-label="longest task" class="n">${one["longest_task"]}</td><td data-label="its seconds" class="n">\
% if one["component"] == slowest["component"]:
<b class="bad">${f'{one["longest_seconds"]:.3f}'}, the slowest</b>\
% else:
${f'{one["longest_seconds"]:.3f}'}\
% endif
</td><td data-label="on">${one["host"]}</td></tr>
% endfor
</tbody>
</table>
</div>
% if graph["left_out"]:
<p class="soft">${counted(graph["left_out"], "quick task")} more, for which the note had no room.</p>
% endif
</section>
% if graph["edges"]:
<section>
<h2>Edges</h2>
<div class="wide" tabindex="0" role="region" aria-label="Tuples and seconds by edge">
<table>
<thead><tr><th scope="col">from</th><th scope="col">stream</th><th scope="col">to</th><th scope="col" class="n">tuples</th><th scope="col" class="n">seconds to send</th><th scope="col" class="n">to take in</th></tr></thead>
<tbody>
% for one in graph["edges"]:
<tr><th scope="row">${one["source"]}</th><td>${one["stream"]}</td><td>${one["target"]}</td><td class="n">${shown(one["tuples"])}</td>\
% for own in own_seconds(one["send_seconds"], one["take_seconds"]):
<td class="n">${own}</td>\
% endfor
</tr>
% endfor
</tbody>
</table>
</div>
<p class="soft">Seconds of all tasks together, outside of bolts. Within a Spark task, a bolt passes its tuples on in its own call.</p>
</section>
% endif
% endif
<section>
<h2>Its code</h2>
% if problem:
<p class="soft">No drawing of groupings and tables: ${problem}.</p>
% else:
<img class="graph" src="${address(id, "graph.svg")}" alt="The graph of ${id}, which is described below">
<details><summary>The same in words</summary><pre tabindex="0" role="region" aria-label="The graph in words">${text}</pre></details>
% endif
</section>
