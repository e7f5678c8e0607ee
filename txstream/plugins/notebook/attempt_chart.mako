<%def name="legend(compared)"><svg width="0" height="0" aria-hidden="true" class="nowhere"><defs>
<pattern id="failed" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs></svg>
<div class="legend">
<span><svg viewBox="0 0 24 18"><rect class="c1" width="12" height="18"/><rect class="c2" x="12" width="12" height="18"/></svg>a column is an attempt of a txid, a row a partition; colour and number: the txid that committed the tuples</span>
<span><svg viewBox="0 0 24 18"><rect class="c0" width="24" height="18"/><rect fill="url(#failed)" width="24" height="18"/></svg>the attempt failed, or was dropped</span>
% if compared:
<span><svg viewBox="0 0 24 18"><rect class="c4" x="2" y="2" width="20" height="14"/><rect class="twice" x="2" y="2" width="20" height="14"/></svg>counted twice</span>
% endif
<span><svg viewBox="0 0 24 18"><rect class="away" opacity=".35" width="24" height="18"/></svg>a partition is away${"" if compared else ", or the run had to wait"}</span>
<span><svg viewBox="0 0 24 18"><line class="death" x1="12" y1="0" x2="12" y2="18"/></svg>${"the driver dies, the next takes over" if compared else "a driver takes over from one that was killed, was lost or failed"}</span>
% if not compared:
<span><svg viewBox="0 0 24 18"><line class="handover" x1="12" y1="0" x2="12" y2="18"/></svg>a driver goes on after one that ended well</span>
% endif
% if compared:
<span>all charts have one time axis, which is wider where more attempts began</span>
% endif
</div>
</%def>
<%def name="chart(chart, label, link)"><svg width="${chart.width}" height="${chart.height}" viewBox="0 0 ${chart.width} ${chart.height}" role="${'img' if link is None else 'group'}"
 aria-label="${label}">
% for away in chart.outages:
<rect class="away" opacity=".16" x="${away.x}" y="${chart.top - 24}" width="${away.width}" height="${chart.row * len(chart.rows) + 24}"><title>${away.text}</title></rect>
% if away.y is not None:
<rect class="away" opacity=".45" x="${away.x}" y="${away.y}" width="${away.width}" height="${chart.row}"/>
% endif
<text x="${away.x + 2}" y="${chart.top - 28}">${away.text[:40]}</text>
% endfor
% for row in chart.rows:
<line class="lane" x1="${row.x}" x2="${row.x + row.width}" y1="${row.y + chart.row / 2}" y2="${row.y + chart.row / 2}"/>
<text class="end" x="${row.x - 6}" y="${row.y + chart.row / 2 + 4}">${row.text}</text>
<text x="${row.x + row.width + 6}" y="${row.y + chart.row / 2 + 4}">${row.text}</text>
% endfor
% for pause in chart.pauses:
<text class="middle" x="${pause.x + pause.width / 2}" y="${chart.top - 6}">${pause.text}</text>
% endfor
% for column, txid in zip(chart.columns, chart.txids):
% if link is None:
<text class="middle" x="${column.x + chart.cell / 2}" y="${chart.top - 6}">${column.text}</text>
% else:
<a href="${link(txid)}" aria-label="txid ${column.text}"><text class="middle" x="${column.x + chart.cell / 2}" y="${chart.top - 6}">${column.text}</text></a>
% endif
% endfor
% for cell in chart.cells:
<g><title>${cell.title}</title><rect class="c${cell.colour}" x="${cell.x + 1}" y="${cell.y + 1}" width="${chart.cell - 2}" height="${chart.row - 2}" rx="2"/>
% if cell.fate in ("failed", "dropped", "open"):
<rect fill="url(#failed)" x="${cell.x + 1}" y="${cell.y + 1}" width="${chart.cell - 2}" height="${chart.row - 2}"/>
% elif cell.fate == "written":
<rect class="twice" x="${cell.x + 2}" y="${cell.y + 2}" width="${chart.cell - 4}" height="${chart.row - 4}"/>
% endif
% if cell.home is not None and chart.row > 12:
<text class="home" x="${cell.x + chart.cell / 2}" y="${cell.y + chart.row / 2 + 4}">${cell.home}</text>
% endif
</g>
% endfor
% for death in chart.deaths:
<line class="death" x1="${death.x}" x2="${death.x}" y1="${chart.top - 38}" y2="${chart.top + chart.row * len(chart.rows)}"/>
<text class="alert middle" x="${death.x}" y="${chart.top - 42}">${death.text}</text>
% endfor
% for handover in chart.handovers:
<line class="handover" x1="${handover.x}" x2="${handover.x}" y1="${chart.top - 38}" y2="${chart.top + chart.row * len(chart.rows)}"/>
<text class="middle" x="${handover.x}" y="${chart.top - 42}">${handover.text}</text>
% endfor
% for tick in chart.ticks:
<text x="${tick.x}" y="${tick.y + 15}">${tick.text}</text>
% endfor
</svg>
</%def>
