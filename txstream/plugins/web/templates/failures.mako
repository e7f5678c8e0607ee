<%inherit file="layout.mako"/>
<%namespace file="parts.mako" import="problems, remedy_link"/>
<%def name="title()">Failures of ${id} · txstream</%def>
<h1>Failures and dead letters</h1>
${problems(failures["missing"])}
<section>
<h2>Attempts that failed</h2>
% if failures["looked_at"]:
<p class="soft">In txid ${shown(failures["looked_at"][0])} to ${shown(failures["looked_at"][1])}.
% if failures["older"] is not None:
<a href="${address(id, "failures", before=failures["older"])}">Look at older ones</a>
% endif
</p>
% endif
% if not failures["reasons"]:
<p>None.</p>
% endif
% for group in failures["reasons"]:
<article>
<h3>${f"{group['component']}: {group['exception'] or 'an error'}, " if group["component"] else ""}${counted(group["attempts"], "attempt")} of ${counted(group["batches"], "batch", "batches")}, last at ${moment(group["last"])}</h3>
<pre tabindex="0" role="region" aria-label="Reason">${group["reason"]}</pre>
<p class="soft">${remedy_link(remedy_of(group["error"]))}
% for txid in group["txids"]:
<a href="${address(id, "batches", str(txid))}">txid ${txid}</a>
% endfor
</p>
</article>
% endfor
</section>
<section>
<h2>Dead letters</h2>
% if not failures["dead_letters"]:
<p>None.</p>
% endif
% for group in failures["dead_letters"]:
<article>
<h3>${group["component"]}: ${group["exception"]}</h3>
<p>${counted(group["dead"], "record")} dead, ${shown(group["retried"])} retried since. ${remedy_link(remedy_of(group["exception"]) or "BoltError")}
% if operate and group["dead"]:
<a class="button" href="${address(id, "ask", "retry", component=group["component"])}">Retry…</a>
% endif
</p>
<div class="wide" tabindex="0" role="region" aria-label="Newest dead letters of ${group["component"]}">
<table>
<thead><tr><th scope="col">place</th><th scope="col" class="n">txid</th><th scope="col">status</th><th scope="col">message</th></tr></thead>
<tbody>
% for letter in group["newest"]:
<tr><th scope="row">${letter["place"]}</th><td class="n"><a href="${address(id, "batches", str(letter["txid"]))}">${letter["txid"]}</a></td><td>${letter["status"]}</td><td>${letter["message"]}</td></tr>
% endfor
</tbody>
</table>
</div>
</article>
% endfor
</section>
