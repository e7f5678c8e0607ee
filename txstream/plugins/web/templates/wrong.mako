<%inherit file="layout.mako"/>
<%def name="title()">Something is wrong · txstream</%def>
<h1>This cannot be shown</h1>
<p class="alert">${words}.</p>
<p><a href="/">All topologies</a></p>
