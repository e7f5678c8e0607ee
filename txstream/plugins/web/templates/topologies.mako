<%inherit file="layout.mako"/>
<%def name="title()">Topologies · txstream</%def>
<h1>Topologies</h1>
% if not rows:
<p>There are no topologies yet; <code>txstream run MODULE:FACTORY</code> makes one.</p>
% else:
<div class="wide" tabindex="0" role="region" aria-label="Table of topologies">
<table class="cards">
<thead><tr><th scope="col">topology</th><th scope="col">state</th><th scope="col" class="n">last txid</th>
<th scope="col" class="n">last commit</th><th scope="col" class="n">records/s</th><th scope="col" class="n">lag</th>
<th scope="col" class="n">open plans</th><th scope="col" class="n">dead letters</th><th scope="col">leader</th></tr></thead>
<tbody>
% for row in rows:
<tr>
<th scope="row"><a href="${address(row["id"])}">${row["id"]}</a> <span class="soft">${row["kind"] or ""}</span></th>
<td data-label="state"><span class="state ${row["state"].replace(" ", "-")}">${row["state"]}</span></td>
<td data-label="last txid" class="n">${shown(row["committed_txid"])}</td>
<td data-label="last commit" class="n">${age(row.get("age_seconds"))}</td>
<td data-label="records/s" class="n">${f'{row["records_per_second"]:,.0f}' if row.get("records_per_second") else "-"}</td>
<td data-label="lag" class="n">${shown(row.get("lag_records"))}
% if row.get("lag_seconds"):
<span class="soft">${age(row["lag_seconds"])}</span>
% endif
</td>
<td data-label="open plans" class="n">${len(row.get("stored_plans", ())) or "-"}</td>
<td data-label="dead letters" class="n">
% if row.get("dead_letters"):
<a href="${address(row["id"], "failures")}">${shown(row["dead_letters"])}</a>
% else:
${shown(row.get("dead_letters"))}
% endif
</td>
<td data-label="leader">${row["leader"] or "none"}\
% if row.get("standbys"):
<span class="soft"> +${counted(len(row["standbys"]), "standby", "standbys")}</span>\
% endif
</td>
</tr>
% for words in [*([row["health"]] if row.get("health") not in (None, row["state"]) else ()), *([f"paused {row['paused']}"] if row.get("paused") else ()), *(f"{name} cannot be read: {why}" for name, why in list(row.get("unavailable", {}).items())[:3]), *row.get("missing", ()), *([row["note"]] if row["note"] else ())]:
<tr class="words"><td colspan="9">${words}</td></tr>
% endfor
% endfor
</tbody>
</table>
</div>
% endif
