<%def name="title()">txstream</%def>\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${capture(self.title).strip()}</title>
<link rel="stylesheet" href="/static/look.css">
<link rel="stylesheet" href="/static/ui.css">
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<script src="/static/ui.js" defer></script>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header>
<a class="brand" href="/">txstream</a>
% if id is None:
<a class="beside" href="/compare">Comparisons</a>
% endif
% if id is not None:
<span class="where" aria-hidden="true">/</span>
<strong class="where">${id}</strong>
% endif
<span id="live" class="soft" role="status"></span>
</header>
% if id is not None:
<nav aria-label="Views of this topology">
% for part, words in TABS.items():
% if part in OF_TRACKED or not tracked:
<a href="${address(id, *([part] if part else []))}"${' aria-current="page"' if part == tab else '' | n}>${words}</a>
% endif
% endfor
</nav>
% endif
<main id="main" tabindex="-1">
<div id="view"
% if live is not None:
 data-live="${live}"
% endif
>
${next.body() | n}
</div>
</main>
<footer class="soft">
% if data is not None:
<a href="${data}">This as JSON</a> ·
% endif
${"Drivers can be operated from here" if operate else "This page only looks"} · txstream ${version}
</footer>
</body>
</html>
