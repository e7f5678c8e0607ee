<%inherit file="layout.mako"/>
<%def name="title()">Comparisons · txstream</%def>
<h1>Comparisons</h1>
<p class="soft">A topology under the three semantics, over the same records and through the same faults.</p>
% if found["started"]:
<% one = found["started"] %>
<section>
<h2>Started from this page at ${moment(one["since"])}: \
% if one["status"] is None:
<span class="state running">running</span>\
% elif one["status"] == 0:
<span class="good">it has ended, and what must be exact is</span>\
% else:
<span class="bad">it ended with status ${one["status"]}</span>\
% endif
</h2>
<p><code>${one["command"]}</code></p>
% if one["lines"]:
<pre tabindex="0" role="region" aria-label="Its last lines">${"\n".join(one["lines"])}</pre>
% endif
</section>
% endif
% if operate:
<section>
<h2>Start one</h2>
<form method="get" action="/compare/ask" class="find">
<label>topic <input name="topic" placeholder="made lines"></label>
<label>topology <input name="target" placeholder="the word count"></label>
<label>parameters <input name="parameters" placeholder="NAME=VALUE …"></label>
<label>records <input name="records" inputmode="numeric" value="20000" size="8" required></label>
<label>faults <select name="faults">
% for name in faults:
<option>${name}</option>
% endfor
</select></label>
<button>Compare…</button>
</form>
<p class="soft">A topology is MODULE:FACTORY, a function with the parameters <code>semantics</code> and <code>topic</code>.
Each run has tables of its own, which are removed at the end.</p>
</section>
% else:
<p class="soft"><code>txstream compare --topic TOPIC</code> makes one; with <code>--allow-operate</code> this page starts it.</p>
% endif
<section>
<h2>Those made from this data directory</h2>
% if not found["kept"]:
<p>None yet.</p>
% else:
<div class="wide" tabindex="0" role="region" aria-label="Comparisons">
<table class="cards">
<thead><tr><th scope="col">at</th><th scope="col">topology</th><th scope="col">result</th></tr></thead>
<tbody>
% for one in found["kept"]:
<tr><th scope="row"><a href="/compare/${one["name"]}">${moment(one["date"])}</a></th><td class="whole">${one["topology"]}</td><td class="whole">
% for semantics, sentence in one["told"].items():
<div>${semantics}: <span class="${"good" if one["exact"][semantics] else "bad"}">${sentence}</span></div>
% endfor
</td></tr>
% endfor
</tbody>
</table>
</div>
% endif
</section>
