<svg xmlns="http://www.w3.org/2000/svg" class="graph" width="${width}" height="${height}" viewBox="0 ${top} ${width} ${height}" role="img" aria-label="${label}">
% if look:
<title>${label}</title>
<style>${look}
svg { background: var(--page); }</style>
<text class="name" x="${margin}" y="-8">${cut(label)}</text>
% endif
<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path class="head" d="M0,0.5 L8,4 L0,7.5 Z"/></marker></defs>
% for path in paths:
<path class="edge" d="${path}" marker-end="url(#arrow)"/>
% endfor
% for edge, route in zip(edges, placed.routes):
<text class="middle" x="${round(route.label.x + margin, 1)}" y="${round(route.label.y + margin + 4, 1)}">${cut(edge.label)}</text>
% endfor
% for node in nodes:
<% at, size = placed.nodes[node.name], sizes[node.name] %>\
<g><title>${node.name}</title><rect class="node${' ' + node.mark if node.mark else ''}" x="${round(at.x - size.width / 2 + margin, 1)}" y="${round(at.y - size.height / 2 + margin, 1)}" width="${round(size.width, 1)}" height="${round(size.height, 1)}" rx="6"/>
% for number, words in enumerate((node.name, *node.lines)):
<text class="middle${' name' if number == 0 else ''}" x="${round(at.x + margin, 1)}" y="${round(at.y + margin - size.height / 2 + 10 + line * number + 13, 1)}">${cut(words)}</text>
% endfor
</g>
% endfor
</svg>
