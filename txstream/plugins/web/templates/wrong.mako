<%inherit file="layout.mako"/>
<%namespace file="parts.mako" import="remedy_link"/>
<%def name="title()">Something is wrong · txstream</%def>
<h1>This cannot be shown</h1>
<p class="alert">${words}. ${remedy_link(remedy)}</p>
% if known:
<section>
<h2>What is known without it</h2>
<dl>
<dt>state</dt><dd>${known["health"] or known["state"]}</dd>
<dt>last txid</dt><dd>${shown(known["committed_txid"])}</dd>
<dt>open plans</dt><dd>${", ".join(map(str, known["stored_plans"])) or "none is stored"}</dd>
<dt>leader</dt><dd>${known["leader"] or "none, it is not running"}</dd>
<dt>lag</dt><dd>${f'{counted(known["lag_records"], "record")}' if known["lag_records"] is not None else known["lag_unknown"] or "not known"}</dd>
<dt>dead letters</dt><dd>${"not known" if known["dead_letters"] is None else shown(known["dead_letters"])}</dd>
% for name, why in sorted(known["unavailable"].items())[:5]:
<dt>${name}</dt><dd>cannot be read: ${why}</dd>
% endfor
</dl>
% if known["failing"]:
<p class="alert"><a href="${address(id, "batches", str(known["failing"]["txid"]))}">Txid ${known["failing"]["txid"]}</a> is not committed yet: ${counted(known["failing"]["failed_attempts"], "attempt")} failed.</p>
% endif
<p><a href="${address(id)}">All that is known now</a>, <a href="${address(id, "source")}">its source</a></p>
</section>
% endif
<p><a href="/">All topologies</a></p>
