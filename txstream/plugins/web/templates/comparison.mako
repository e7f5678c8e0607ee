<%inherit file="layout.mako"/>
<%def name="title()">Comparison of ${found["topology"]} · txstream</%def>
<h1>Three semantics, the same faults <span class="soft">${found["topology"]}</span></h1>
<p class="soft">${moment(found["date"])}, in ${found["engine"]}, txstream ${found["version"]}: <code>${found["command"]}</code></p>
% if found["nothing_shown"]:
<p class="alert">Nothing was shown: ${found["nothing_shown"]}.</p>
% endif
<p>Truth, by ${found["truth"]}:
${", ".join(f"{shown(total)} in {column}" for column, total in found["true_totals"].items()) or "no column is a sum; rows are compared"}.</p>
<section>
<h2>Side by side</h2>
<div class="wide" tabindex="0" role="region" aria-label="Figures side by side">
<table>
<thead><tr><td></td>
% for name in found["semantics"]:
<th scope="col" class="n">${name}</th>
% endfor
</tr></thead>
<tbody>
% for words, values in found["side_by_side"]:
<tr><th scope="row">${words}</th>
% for value in values:
<td class="n ${"" if not isinstance(value, bool) else "good" if value else "bad"}">${shown(value)}</td>
% endfor
</tr>
% endfor
</tbody>
</table>
</div>
<ul>
% for name, sentence in found["told"].items():
<li>${name}: <span class="${"good" if found["semantics"][name]["exact"] else "bad"}">${sentence}</span></li>
% endfor
</ul>
</section>
<section>
<h2>The faults</h2>
% if found["faults_in_words"]:
<ul>
% for fault in found["faults_in_words"]:
<li>${fault}</li>
% endfor
</ul>
% else:
<p>None.</p>
% endif
</section>
% for name, chart in found["charts"].items():
<section>
<h2>${name}: <span class="${"good" if found["semantics"][name]["exact"] else "bad"}">${"exact" if found["semantics"][name]["exact"] else "not exact"}</span></h2>
<div class="chart" tabindex="0" role="region" aria-label="Attempts of the ${name} run by time; scroll sideways">
${chart | n}
</div>
</section>
% endfor
${legend(compared=True) | n}
<details><summary>The topology</summary><pre tabindex="0" role="region" aria-label="The topology">${found["description"]}</pre></details>
