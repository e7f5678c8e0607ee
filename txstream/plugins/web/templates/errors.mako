<%inherit file="layout.mako"/>
<%def name="title()">Errors · txstream</%def>
<h1>Errors, and what to do</h1>
% for part in parts:
<section>
<p>${part.told | n}</p>
% if part.rows:
<dl class="errors">
% for names, means, remedy in part.rows:
<dt>\
% for name in names:
<code id="${name}">${name}</code> \
% endfor
</dt><dd>${means | n}. <strong>Do:</strong> ${remedy | n}.</dd>
% endfor
</dl>
% endif
</section>
% endfor
