<%inherit file="layout.mako"/>
<%def name="title()">${kind} ${id}? · txstream</%def>
<h1>${question}</h1>
% if components:
<p>Only those of ${", ".join(components)}, whatever their exception.</p>
% endif
<form method="post" action="${address(id, "ask", kind)}">
% for one in components:
<input type="hidden" name="component" value="${one}">
% endfor
<button>Yes, ${kind}</button> <a href="${address(id)}">No, go back</a>
</form>
