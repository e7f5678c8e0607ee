<%inherit file="layout.mako"/>
<%def name="title()">${id} · txstream</%def>
<h1>${done}</h1>
<p><a href="${address(id)}">Back to ${id}</a></p>
