<%inherit file="layout.mako"/>
<%namespace file="parts.mako" import="problems"/>
<%def name="title()">Trust in ${id} · txstream</%def>
<h1>Trust</h1>
${problems(trust["missing"])}
<section>
<h2>Who may write</h2>
<dl>
<dt>leader</dt><dd>${trust["leader"] or "none, it is not running"}</dd>
% for one in trust["standbys"]:
<dt>standby</dt><dd>${one["driver"]}, ${one["standby"] or "standing by"} since ${moment(one["since"])}</dd>
% endfor
<dt>epoch</dt><dd>${shown(trust["epoch"])}</dd>
<dt>next txid</dt><dd>${shown(trust["current_txid"])}</dd>
<dt>life</dt><dd><code>${trust["uuid"]}</code></dd>
</dl>
</section>
% for one in trust["databases"]:
<section>
<h2>${one["database"]}</h2>
<dl>
<dt>fence</dt><dd>${one["fence"] or "none: it takes part in no commit yet"}\
% if one["fence_epoch"] is not None and trust["epoch"] is not None and one["fence_epoch"] != trust["epoch"]:
 <span class="soft">(epoch ${one["fence_epoch"]}; no leader since has raised it)</span>\
% endif
</dd>
<dt>ledger</dt><dd>\
% if one["last_txid"] is None:
no batch yet\
% else:
<a href="${address(id, "batches", str(one["last_txid"]))}">txid ${one["last_txid"]}</a> ${one["last_status"]} by attempt ${one["last_attempt"]}\
% endif
</dd>
% for table, digest in one["digests"].items():
<dt>digest</dt><dd>${table}: <code>${told(digest)}</code></dd>
% endfor
</dl>
</section>
% endfor
<section>
<h2>Does everything fit together?</h2>
% if trust["fsck"] is None:
<p>It was not checked from here yet.</p>
% else:
<% fsck = trust["fsck"] %>
<p class="${"good" if fsck["clean"] else "bad"}">${"All is well" if not fsck["findings"] else counted(len(fsck["findings"]), "finding")}, as of ${moment(fsck["at"])}.</p>
<ul>
% for one in fsck["findings"]:
<li><b class="${"soft" if one["severity"] == "note" else "bad"}">${one["severity"]}</b> ${one["where"]}: ${one["what"]}; ${one["remedy"]}</li>
% endfor
</ul>
<details><summary>What was compared</summary><ul>
% for one in fsck["checked"]:
<li>${one}</li>
% endfor
</ul></details>
% endif
<form method="post" action="${address(id, "fsck")}"><button>Check it now</button> <span class="soft">reads everything, changes nothing</span></form>
</section>
