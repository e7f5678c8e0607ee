<%inherit file="layout.mako"/>
<%def name="title()">Token · txstream</%def>
<h1>Token</h1>
% if wrong:
<p class="alert">That is not the token.</p>
% endif
<p>It is in the address that <code>txstream ui</code> printed, or in the file that it was given with
<code>--token-file</code>.</p>
<form method="post" action="/login" class="find">
<input type="hidden" name="next" value="${next}">
<label>token <input type="password" name="token" required autocomplete="current-password"></label>
<button>Go on</button>
</form>
