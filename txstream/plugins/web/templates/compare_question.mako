<%inherit file="layout.mako"/>
<%def name="title()">Compare? · txstream</%def>
<h1>Start this comparison?</h1>
<p><code>${join(["txstream", "compare", *words])}</code></p>
<p>It runs the topology's code on this machine, three times, under ids and with tables of its own.</p>
<form method="post" action="/compare">
% for name, values in asked.items():
% for value in values:
<input type="hidden" name="${name}" value="${value}">
% endfor
% endfor
<button>Yes, compare</button> <a href="/compare">No, go back</a>
</form>
