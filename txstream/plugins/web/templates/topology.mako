<%inherit file="layout.mako"/>
<%namespace file="parts.mako" import="hour_of, problems, remedy_link, spark"/>
<%def name="title()">${id} · txstream</%def>
<% status = found.status %>\
<h1>${id} <span class="state ${row["state"].replace(" ", "-")}">${row["state"]}</span></h1>
${problems(row["missing"] + ([problem] if problem else []))}
% if row["health"] and row["health"] != row["state"]:
<p class="alert">${row["health"][:1].upper()}${row["health"][1:]}. ${remedy_link(remedy_of(row["health"]))}</p>
% endif
% if row["paused"]:
<p class="alert">Paused ${row["paused"]}.</p>
% endif
% if row["failing"]:
<p class="alert"><a href="${address(id, "batches", str(row["failing"]["txid"]))}">Txid ${row["failing"]["txid"]}</a> is not committed yet: ${counted(row["failing"]["failed_attempts"], "attempt")}
failed, the last one at ${moment(row["failing"]["last_failed_at"])}:
${"; ".join(f"{times:,} x {reason}" for reason, times in row["failing"]["reasons"].items())}.
${remedy_link(remedy_of("; ".join(row["failing"]["reasons"])))}</p>
% endif
% for name, why in sorted(row["unavailable"].items())[:5]:
<p class="alert">${name} cannot be read: ${why}. ${remedy_link("PartitionUnavailableError")}</p>
% endfor
% if row["kind"] == "tracked":
${trees(status.trees)}
% else:
<div class="tiles">
<div class="tile"><span>last txid</span><b>${shown(row["committed_txid"])}</b><small>${moment(row["committed_at"])}</small></div>
<div class="tile"><span>last commit</span><b>${age(row["age_seconds"])}</b><small>ago</small></div>
<div class="tile"><span>records/s</span><b>${f'{row["records_per_second"]:,.0f}' if row["records_per_second"] else "-"}</b><small>in the last batches</small></div>
<div class="tile"><span>lag</span><b>${shown(row["lag_records"])}</b><small>\
% if row["lag_seconds"] is not None:
records, ${age(row["lag_seconds"])} of work
% else:
${row["lag_unknown"] or "records"}
% endif
</small></div>
<div class="tile"><span>open plans</span><b>${len(row["stored_plans"])}</b><small>${", ".join(map(str, row["stored_plans"][:6])) or "none is stored"}</small></div>
<div class="tile"><span>dead letters</span><b>${shown(row["dead_letters"])}</b><small><a href="${address(id, "failures")}">failures</a></small></div>
% for name, txids in sorted(status.behind.items()):
<div class="tile"><span>${name} leaves</span><b>${shown(txids)}</b><small>txids behind</small></div>
% endfor
% if row["watermark"] or row["watermark_held_by"]:
<div class="tile"><span>windows closed up to</span><b>${moment(row["watermark"]) or "-"}</b><small>\
% if row["watermark_held_by"]:
held back by ${", ".join(row["watermark_held_by"][:3])}${f' and {len(row["watermark_held_by"]) - 3} more' if len(row["watermark_held_by"]) > 3 else ""}
% else:
no partition holds it back
% endif
</small></div>
% endif
</div>
% if hour:
${hour_of(hour)}
% elif len(row["tuples"]) > 1:
<section>
<h2>Records in the last ${len(row["tuples"])} batches</h2>
${spark(row["tuples"])}
</section>
% endif
% endif
<section>
<h2>What it is</h2>
<dl>
<dt>semantics</dt><dd>${row["kind"]}</dd>
% for name, remark in row["remarks"].items():
<dt>${name}</dt><dd>${remark}</dd>
% endfor
<dt>source</dt><dd>${status.spout}, ${told(status.source)}</dd>
<dt>tables</dt><dd>
% for table in status.tables:
<a href="${address(id, "state", table)}">${table}</a>
% endfor
in ${found.shown_places}</dd>
<dt>leader</dt><dd>${row["leader"] or "none, it is not running"}</dd>
% if row["standbys"]:
<dt>standbys</dt><dd>${", ".join(row["standbys"])}</dd>
% endif
<dt>life</dt><dd><code>${status.uuid}</code></dd>
</dl>
% for page in also:
<p><a href="${address(id, "also", page.name)}">${page.words}</a></p>
% endfor
</section>
% if operate:
<section>
<h2>Ask its driver</h2>
<p class="actions">
% for kind, words in (("pause", "Pause"), ("resume", "Resume"), ("stop", "Stop")):
<a class="button" href="${address(id, "ask", kind)}">${words}…</a>
% endfor
</p>
</section>
% endif
<%def name="trees(trees)">
% if trees is None:
<p>It tracks tuples, and its driver has noted nothing yet.</p>
% else:
<div class="tiles">
<div class="tile"><span>micro-batches</span><b>${shown(trees["micro_batches"])}</b><small>${shown(trees["failed_micro_batches"])} failed</small></div>
% for spout, ages in trees["pending"].items():
<div class="tile"><span>pending ${spout}</span><b>${shown(sum(ages.values()))}</b>
<small>${", ".join(f"{number:,} {'older' if old == 'older' else f'up to {old} s'}" for old, number in ages.items() if number) or "no tree is open"}</small></div>
% endfor
</div>
% if trees["stuck"]:
<p class="alert">${trees["stuck"]}</p>
% endif
<section>
<h2>Tuples by component, as of ${moment(trees["at"])}</h2>
<div class="wide" tabindex="0" role="region" aria-label="Tuples by component">
<table>
<thead><tr><th scope="col">component</th><th scope="col" class="n">messages</th><th scope="col" class="n">per second</th><th scope="col" class="n">acked</th><th scope="col" class="n">failed</th><th scope="col" class="n">timed out</th></tr></thead>
<tbody>
% for name, one in trees["components"].items():
<tr><th scope="row">${name}</th><td class="n">${shown(one["messages"])}</td><td class="n">${f'{one["messages_per_second"]:,.0f}'}</td><td class="n">${shown(one["acked"])}</td><td class="n">${shown(one["failed"])}</td><td class="n">${shown(one["timed_out"])}</td></tr>
% endfor
</tbody>
</table>
</div>
</section>
% endif
</%def>
