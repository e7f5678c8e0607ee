<%inherit file="layout.mako"/>
<%namespace file="parts.mako" import="rows, changed"/>
<%def name="title()">${table["table"]} of ${id} · txstream</%def>
<h1>${table["table"]} <span class="soft">as of txid ${shown(table["as_of"])}</span></h1>
<form method="get" action="${address(id, "state", table["table"])}" class="find">
% for place, name in enumerate(table["key_columns"]):
<label>${name} <input name="key" value="${table["key"][place] if place < len(table["key"]) else ""}" required></label>
% endfor
<button>Find</button>
% if table["key"]:
<a href="${address(id, "state", table["table"])}">the greatest values</a>
% endif
</form>
% for note in table["notes"]:
<p class="soft">${note}.</p>
% endfor
<section>
<h2>${"The row" if table["key"] else "The greatest values"}</h2>
% if not table["rows"]:
<p>${"There is no row of this key." if table["key"] else "It has no rows yet."}</p>
% else:
${rows(table["rows"], table["decimals"])}
% endif
</section>
% if table["key"] and table["rows"]:
<section>
<h2>Why this value?</h2>
% if why is not None:
<p>${"These records make the whole value." if why["is_complete"] else "These are the newest of the records that make the value."}</p>
<div class="wide" tabindex="0" role="region" aria-label="Records behind the value">
<table>
<thead><tr><th scope="col" class="n">txid</th><th scope="col">partition</th><th scope="col" class="n">offset</th><th scope="col">added</th><th scope="col">value after it</th></tr></thead>
<tbody>
% for part in why["parts"]:
<tr><th scope="row" class="n"><a href="${address(id, "batches", str(part["txid"]))}">${part["txid"]}</a></th><td>${shown(part["partition"])}</td><td class="n">${shown(part["offset"]) if part["offset"] is not None else "-"}</td><td>${", ".join(f"{name} {shown(value)}" for name, value in part["delta"].items())}</td><td>${", ".join(f"{name} {shown(value)}" for name, value in part["value"].items())}</td></tr>
% endfor
</tbody>
</table>
</div>
% for note in why["notes"]:
<p class="soft">${note}.</p>
% endfor
% endif
% if operate:
<form method="post" action="${address(id, "state", table["table"], "why", key=table["key"])}"><button>Find the records</button> <span class="soft">runs batches again, writes nothing</span></form>
% else:
<p class="soft"><code>txstream why ${id} ${table["table"]} ${" ".join(table["key"])}</code> finds the records that made it.</p>
% endif
</section>
% endif
<section>
<h2>What a batch changed in it</h2>
<form method="get" action="${address(id, "state", table["table"])}" class="find">
<label>txid <input name="txid" inputmode="numeric" value="${table["diff"]["txid"] if table["diff"] else ""}" required></label>
<button>Show</button>
</form>
% if table["diff"]:
<h3><a href="${address(id, "batches", str(table["diff"]["txid"]))}">txid ${table["diff"]["txid"]}</a></h3>
${changed(table["diff"])}
% endif
</section>
