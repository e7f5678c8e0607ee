<%inherit file="layout.mako"/>
<%namespace file="parts.mako" import="changed, problems, remedy_link"/>
<%def name="title()">Txid ${txid} of ${id} · txstream</%def>
<h1>Txid ${shown(txid)} <span class="state ${batch["status"]}">${batch["status"]}</span></h1>
<p class="paging">
% if txid > 1:
<a rel="prev" href="${address(id, "batches", str(txid - 1))}">← txid ${txid - 1}</a>
% endif
<a rel="next" href="${address(id, "batches", str(txid + 1))}">txid ${txid + 1} →</a>
<a href="${address(id, "timeline", before=txid + 20 if "tuples" in batch else None)}">in the timeline</a>
</p>
${problems(missing)}
% if "tuples" not in batch:
<p class="alert">Not committed yet: ${counted(batch["failed_attempts"], "attempt")} failed, the last one
(${attempt(batch["last_attempt"])}) at ${moment(batch["last_failed_at"])}.</p>
<ul>
% for reason, times in batch["reasons"].items():
<li>${times} x ${reason}. ${remedy_link(remedy_of(reason))}</li>
% endfor
</ul>
<section>
<h2>What it holds</h2>
% if batch["ranges"]:
${ranges(batch["ranges"], batch["more_ranges"])}
% else:
<p>That is not known.</p>
% endif
</section>
<section>
<h2>The latest attempts</h2>
% if batch["latest_attempts"]:
${attempts(batch["latest_attempts"][::-1])}
% else:
<p>Nothing else is known of them.</p>
% endif
</section>
% else:
<section>
<h2>What it was</h2>
<dl>
<dt>attempt</dt><dd>${attempt(batch["attempt"])}, ${batch["semantics"]}, ${batch["path"] or "the path was not recorded"}</dd>
<dt>tuples</dt><dd>${shown(batch["tuples"])}, ${counted(batch["keys"], "key")} written</dd>
<dt>planned</dt><dd>${moment(batch["planned_at"])}</dd>
<dt>processed</dt><dd>${moment(batch["processed_at"])}</dd>
<dt>committed</dt><dd>${moment(batch["committed_at"]) if batch["committed_at"] else "not yet"}</dd>
% if batch["phases"]:
<dt>took</dt><dd>${seconds(sum(batch["phases"].values()))}: ${", ".join(f"{step} {seconds(number)}" for step, number in batch["phases"].items())}</dd>
% endif
% if "process" in batch["timings"]:
<dt>in the job</dt><dd>${", ".join(f"{step} {seconds(batch['timings'][step])}" for step in ("read", "process") if step in batch["timings"])}, all Spark tasks together</dd>
% endif
% if batch["dead_letters"]:
<dt>dead letters</dt><dd><a href="${address(id, "failures")}">${counted(batch["dead_letters"], "record")} left out</a></dd>
% endif
% for entry in batch["databases"]:
<dt>in</dt><dd>${entry["database"]}: ${entry["status"]} by ${attempt(entry["attempt"])}, ${counted(entry["keys"], "key")}</dd>
% endfor
</dl>
</section>
% if batch["failed_attempts"]:
<section>
<h2>${counted(len(batch["failed_attempts"]), "attempt")} failed before</h2>
${attempts(batch["failed_attempts"])}
</section>
% endif
% if batch["unavailable"]:
<section>
<h2>What it left out</h2>
<ul>
% for name, why in sorted(batch["unavailable"].items(), key=lambda item: in_order(item[0]))[:50]:
<li><b>${name}</b>: ${why};
% if batch["taken_up"].get(name):
taken up by
% for later in batch["taken_up"][name]:
<a href="${address(id, "batches", str(later))}">txid ${later}</a>
% endfor
% else:
no later batch has taken it up yet
% endif
</li>
% endfor
</ul>
</section>
% endif
<section>
<h2>What it read</h2>
% if not batch["ranges"]:
<p>No records.</p>
% else:
${ranges(batch["ranges"], 0)}
% endif
</section>
<section>
<h2>What it changed</h2>
% for diff in changes:
<h3><a href="${address(id, "state", diff["table"], txid=txid)}">${diff["table"]}</a></h3>
% if "error" in diff:
<p>${diff["error"]}.</p>
% else:
${changed(diff)}
% endif
% endfor
</section>
% if operate:
<section>
<h2>Would it be the same today?</h2>
% if again is not None:
<p class="${"good" if again["same"] else "bad"}">${"Yes: it would write the same." if again["same"] else "No: it would write something else." if again["shown"] else "Nothing could be compared."}</p>
% for table in again["tables"]:
<p class="soft">${table["table"]}: ${"the same" if table["same"] else table["note"] or "not the same"}</p>
% endfor
% endif
<form method="post" action="${address(id, "batches", str(txid), "again")}"><button>Run it again, dry</button></form>
</section>
% endif
% endif
<%def name="attempts(failed_attempts)">
% for failed in failed_attempts:
<article>
<h3>${attempt(failed["attempt"]) if failed["attempt"] is not None else "an attempt"} at ${moment(failed["failed_at"])}</h3>
<pre tabindex="0" role="region" aria-label="Error">${failed["error"]}</pre>
<p>${remedy_link(remedy_of(failed["error"]))}</p>
% if failed["traceback"]:
<details><summary>Traceback</summary><pre tabindex="0" role="region" aria-label="Traceback">${failed["traceback"]}</pre></details>
% endif
<p class="soft">
% if failed["ranges"] is None:
What it held was not recorded.
% else:
It held ${counted(len(failed["ranges"]) + failed["more"], "partition")}${f", without {', '.join(failed['left_out'])}" if failed["left_out"] else ""}.
% endif
</p>
</article>
% endfor
</%def>
<%def name="ranges(found, more)">
<% some = found[:60] %>
<div class="wide" tabindex="0" role="region" aria-label="Ranges">
<table>
<thead><tr><th scope="col">partition</th><th scope="col" class="n">start</th><th scope="col" class="n">end</th><th scope="col" class="n">records</th><th scope="col">skipped</th></tr></thead>
<tbody>
% for one in some:
<tr><th scope="row">${one["partition"]}</th><td class="n">${shown(one["start"])}</td><td class="n">${shown(one["end"])}</td><td class="n">${shown(one["records"])}</td><td>${"" if one["skipped_from"] is None else f"from {one['skipped_from']:,}"}</td></tr>
% endfor
</tbody>
</table>
</div>
% if len(found) > len(some):
<p class="soft">And ${counted(len(found) - len(some), "partition")} more, which the JSON has.</p>
% endif
% if more:
<p class="soft">And ${counted(more, "partition")} for which its leader's note has no room.</p>
% endif
</%def>
