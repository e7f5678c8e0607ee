<%inherit file="layout.mako"/>
<%namespace file="parts.mako" import="problems"/>
<%def name="title()">Source of ${id} · txstream</%def>
<h1>Source</h1>
${problems(source["missing"])}
<p>${source["spout"]}: \
% if source["lag_records"] is not None:
${counted(source["lag_records"], "record")} after the last committed batch.
% elif source["lag_unknown"]:
the lag is not known: ${source["lag_unknown"]}.
% else:
the lag is not known, because partitions cannot be read.
% endif
</p>
% for wait in source["waiting"]:
<p class="alert">Waiting for ${wait["what"]} since ${moment(wait["since"])}${f' ({wait["because"]})' if wait["because"] else ""}: ${wait["reason"]}.</p>
% endfor
% if source["away"]:
<p class="alert">${counted(source["away"], "partition")} cannot be read, or could not when the last batch was planned.</p>
% endif
<section>
<h2>Partitions</h2>
% if not source["partitions"]:
<p>No batch is committed yet.</p>
% else:
<p class="soft">Those away come first, then those with the greatest lag. “Lately” is the last ${counted(source["looked_back"], "batch", "batches")}.</p>
<div class="wide" tabindex="0" role="region" aria-label="Partitions">
<table>
<thead><tr><th scope="col">partition</th><th scope="col" class="n">next</th><th scope="col" class="n">lag</th><th scope="col" class="n">records lately</th><th scope="col">away</th></tr></thead>
<tbody>
% for one in source["partitions"]:
<tr><th scope="row">${one["partition"]}</th><td class="n">${shown(one["next"])}</td><td class="n">${"-" if one["lag_records"] is None else shown(one["lag_records"])}\
% if one["held_back"]:
 (${shown(one["held_back"])} held back)\
% endif
</td><td class="n">${shown(one["records_recently"])}</td><td>
% if one["away"] is not None:
<span class="bad">${"now" if one["away"]["since"] is None else f"since {moment(one['away']['since'])}"}</span>
% if one["away"]["txid"] is not None:
(<a href="${address(id, "batches", str(one["away"]["txid"]))}">txid ${one["away"]["txid"]}</a>${" or before" if one["away"]["or_before"] else ""})
% endif
${one["away"]["reason"]}
% endif
</td></tr>
% endfor
</tbody>
</table>
</div>
% if source["more_partitions"]:
<p class="soft">And ${counted(source["more_partitions"], "partition")} more, all of which can be read.</p>
% endif
% endif
</section>
<section>
<h2>Gaps</h2>
% if not source["gaps"]:
<p>None in the last ${counted(source["looked_back"], "batch", "batches")}.</p>
% else:
<ul>
% for gap in reversed(source["gaps"]):
<li>${gap["partition"]}: ${shown(gap["from"])} to ${shown(gap["to"])} skipped by <a href="${address(id, "batches", str(gap["txid"]))}">txid ${gap["txid"]}</a></li>
% endfor
</ul>
% endif
</section>
