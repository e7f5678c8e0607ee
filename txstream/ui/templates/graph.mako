<%inherit file="layout.mako"/>
<%def name="title()">Graph of ${id} · txstream</%def>
<h1>Graph</h1>
% if problem:
<p class="soft">No drawing: ${problem}.</p>
% else:
<section><img class="graph" src="${address(id, "graph.svg")}" alt="The graph of ${id}, which is described below">
<details><summary>The same in words</summary><pre tabindex="0" role="region" aria-label="The graph in words">${text}</pre></details></section>
% endif
<section>
<h2>Tasks of a recent batch</h2>
% if not tasks:
<p>Its driver has noted none.</p>
% else:
<% slowest = max(one["seconds"] for one in tasks) %>
<div class="wide" tabindex="0" role="region" aria-label="Tasks by component">
<table>
<thead><tr><th scope="col">component</th><th scope="col" class="n">tasks</th><th scope="col" class="n">tuples</th><th scope="col" class="n">slowest task</th><th scope="col" class="n">seconds</th></tr></thead>
<tbody>
% for one in tasks:
<tr><th scope="row">${one["component"]}</th><td class="n">${one["tasks"]}</td><td class="n">${shown(one["tuples"])}</td><td class="n">${one["slowest"]}</td><td class="n"><span class="${"bad" if one["seconds"] == slowest and len(tasks) > 1 else ""}">${f'{one["seconds"]:.3f}'}</span></td></tr>
% endfor
</tbody>
</table>
</div>
% endif
</section>
