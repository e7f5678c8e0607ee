<%inherit file="layout.mako"/>
<%namespace file="parts.mako" import="rows"/>
<%def name="title()">${page.words} · txstream</%def>
% if question is not None:
<h1>${question}</h1>
<form method="post" action="${address(id, "also", page.name, pressed, "yes")}">
<button>Yes, ${page.buttons[pressed].words.lower()}</button> <a href="${address(id, "also", page.name)}">No, go back</a>
</form>
% else:
<h1>${page.words}</h1>
% for words in told.words:
<p>${words}</p>
% endfor
% for words, found in told.tables.items():
<section>
<h2>${words}</h2>
% if found:
${rows(found)}
% else:
<p class="soft">None.</p>
% endif
</section>
% endfor
<div class="actions">
% for name, button in page.buttons.items():
% if operate or button.asked is None:
<form method="post" action="${address(id, "also", page.name, name)}"><button>${button.words}${"" if button.asked is None else "…"}</button></form>
% endif
% endfor
</div>
% endif
