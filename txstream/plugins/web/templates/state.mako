<%inherit file="layout.mako"/>
<%namespace file="parts.mako" import="problems"/>
<%def name="title()">State of ${id} · txstream</%def>
<h1>State</h1>
${problems(state["missing"])}
% if not state["tables"]:
<p>It has no state tables.</p>
% else:
<div class="wide" tabindex="0" role="region" aria-label="State tables">
<table>
<thead><tr><th scope="col">table</th><th scope="col">key</th><th scope="col">value</th><th scope="col" class="n">rows</th><th scope="col" class="n">as of txid</th><th scope="col">database</th></tr></thead>
<tbody>
% for one in state["tables"]:
<tr><th scope="row"><a href="${address(id, "state", one["table"])}">${one["table"]}</a></th><td>${one["key"]}</td><td>${one["value"]}</td><td class="n">${shown(one["rows"])}</td><td class="n">${shown(one["as_of"])}</td><td>${one["database"]}</td></tr>
% for note in one["notes"]:
<tr class="words"><td colspan="6">${note}</td></tr>
% endfor
% endfor
</tbody>
</table>
</div>
% endif
