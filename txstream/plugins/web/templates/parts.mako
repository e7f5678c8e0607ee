<%def name="problems(missing)">
% for words in missing:
<p class="alert">${words}. ${remedy_link(remedy_of(words))}</p>
% endfor
</%def>
<%def name="remedy_link(name)">\
% if name:
<a href="/errors#${name}">What to do</a>\
% endif
</%def>
<%def name="spark(numbers)"><% most = max(numbers) or 1 %>
<svg class="spark" viewBox="0 0 ${len(numbers) * 12} 40" width="${len(numbers) * 12}" height="40" role="img" aria-label="${", ".join(f"{one:,}" for one in numbers)}">
% for place, one in enumerate(numbers):
<rect class="c0" x="${place * 12 + 1}" y="${40 - 38 * one / most}" width="10" height="${38 * one / most}"><title>${f"{one:,}"}</title></rect>
% endfor
</svg>
</%def>
<%def name="hour_of(hour)">
<section>
<h2>The last hour, minute by minute</h2>
<div class="hour">
% for words, name, told in (("records/s", "records_per_second", shown), ("lag, in records", "lag_records", shown), ("seconds from plan to commit", "commit_seconds", shown)):
<% known = [one for one in hour[name] if one is not None] %>
% if known:
<figure><figcaption>${words}: at most ${told(max(known))}, last ${told(known[-1])}</figcaption>
${spark([one or 0 for one in hour[name]])}</figure>
% endif
% endfor
</div>
% if hour["stride"] > 1:
<p class="soft">Estimated from one batch of ${shown(hour["stride"])}.</p>
% endif
</section>
</%def>
<%def name="rows(found, decimals=())"><%
numbers = {name for row in found for name, value in row.items() if isinstance(value, (int, float)) and not isinstance(value, bool)} | {*decimals}
texts = {name: aligned([row.get(name) for row in found]) for name in numbers}
%>
<div class="wide" tabindex="0" role="region" aria-label="Rows">
<table>
<thead><tr>
% for name in found[0]:
<th scope="col"${' class="n"' if name in numbers else '' | n}>${name}</th>
% endfor
</tr></thead>
<tbody>
% for place, row in enumerate(found):
<tr>
% for name, value in row.items():
<td${' class="n"' if name in numbers else '' | n}>${texts[name][place] if name in numbers else shown(value)}</td>
% endfor
</tr>
% endfor
</tbody>
</table>
</div>
</%def>
<%def name="changed(diff)">
<% changes = [("changed", diff["changed"]), ("created", diff["created"]), ("removed", diff["removed"])] %>
% if any(some for _, some in changes):
${rows([{"": what, **one["key"], **{k: v for name in one["after"] or one["before"] for k, v in ((f"{name} before", (one["before"] or {}).get(name)), (name, (one["after"] or {}).get(name)))}} for what, some in changes for one in some][:50])}
% endif
% if diff["carrying"]:
${rows([{**one["key"], **one["value"]} for one in diff["carrying"]])}
% elif not any(some for _, some in changes):
<p class="soft">No row shows it any more.</p>
% endif
% for note in diff["notes"]:
<p class="soft">${note}.</p>
% endfor
</%def>
