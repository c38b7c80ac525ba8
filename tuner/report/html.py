"""HTML frame of every page: figures, tables, tabs, and a self-contained document.

A page makes no requests; its content security policy enforces that.  Texts (names of models, operators, tags, messages) are escaped, and
control characters are shown as on the terminal.  Figures are JSON with `<` escaped, so that no name can end their script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from math import isfinite
from typing import NamedTuple

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from simulator.terminal import escape_line, escape_text
from tuner.report.style import DARK, FONT, INK, MUTED, RULE

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_CSS = f"""
:root {{ color-scheme: light dark; --ink: {INK}; --muted: {MUTED}; --rule: {RULE}; --paper: white; --ground: #f6f7f9 }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: {DARK[INK]}; --muted: {DARK[MUTED]}; --rule: {DARK[RULE]}; --paper: #1b202a; --ground: #12161d }}
}}
* {{ box-sizing: border-box }}
body {{ margin: 0; font: 15px/1.55 {FONT}; color: var(--ink); background: var(--ground) }}
header {{ background: var(--paper); border-bottom: 1px solid var(--rule); padding: 28px 40px 0 }}
h1 {{ margin: 0; font-size: 24px; letter-spacing: -.01em; overflow-wrap: anywhere }}
header p {{ margin: 4px 0 0; color: var(--muted); overflow-wrap: anywhere }}
nav {{ margin-top: 18px; display: flex; flex-wrap: wrap; gap: 4px 22px; padding-bottom: 12px }}
nav a {{ color: var(--ink); text-decoration: none; font-size: 14px; border-bottom: 2px solid transparent }}
nav a:hover {{ border-color: var(--ink) }}
main {{ max-width: 1240px; margin: 0 auto; padding: 24px 40px 60px }}
section {{ background: var(--paper); border: 1px solid var(--rule); border-radius: 8px; padding: 20px 24px; margin-bottom: 20px }}
h2 {{ margin: 0 0 4px; font-size: 18px }}
h3 {{ margin: 18px 0 2px; font-size: 15px }}
section > p, .level > p {{ margin: 0 0 10px; color: var(--muted); max-width: 80ch }}
table {{ border-collapse: collapse; min-width: 60%; font-variant-numeric: tabular-nums; font-size: 14px }}
.wide {{ overflow-x: auto }}
th, td {{ padding: 6px 10px; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap }}
th {{ color: var(--muted); font-weight: 500 }}
th.text, td.text {{ text-align: left; white-space: normal; overflow-wrap: break-word }}
pre {{ background: var(--ground); border-radius: 6px; padding: 12px 16px; overflow: auto; font-size: 13px }}
pre {{ max-height: 460px; margin: 8px 0 }}
.tabs {{ display: flex; flex-wrap: wrap; gap: 6px; margin: 6px 0 8px }}
.tabs button {{ font: inherit; font-size: 14px; padding: 4px 14px; border: 1px solid var(--rule); border-radius: 999px }}
.tabs button {{ background: var(--paper); color: var(--ink); cursor: pointer }}
.tabs button[aria-selected=true] {{ background: var(--ink); color: var(--paper); border-color: var(--ink) }}
.figure {{ overflow: hidden }}
.level[hidden] {{ display: none }}
footer {{ color: var(--muted); text-align: center; padding: 0 0 40px; font-size: 13px }}
@media (max-width: 700px) {{
  header {{ padding: 20px 16px 0 }}
  main {{ padding: 12px 8px 40px }}
  section {{ padding: 14px 12px }}
}}
"""
_SCRIPT = (
    f"const DARK = {json.dumps(DARK)};"
    + """
const shown = new Set(), dark = matchMedia('(prefers-color-scheme: dark)');
function draw(id) {
  if (shown.has(id)) return;
  let text = document.getElementById('data-' + id).textContent;
  // in quotes: a name that contains a colour is escaped, and stays as it is
  if (dark.matches) for (const [light, other] of Object.entries(DARK)) text = text.replaceAll(`"${light}"`, `"${other}"`);
  const figure = JSON.parse(text);
  Plotly.react(id, figure.data, figure.layout, {
    responsive: true, displaylogo: false, modeBarButtonsToRemove: ['select2d', 'lasso2d'],
    displayModeBar: innerWidth > 700 ? 'hover' : false
  });
  shown.add(id);
}
function visible(root) {
  root.querySelectorAll('.figure').forEach(node => { if (node.offsetParent !== null) draw(node.id); });
}
document.querySelectorAll('.tabs').forEach(tabs => tabs.addEventListener('click', event => {
  const level = event.target.dataset.level;
  if (level === undefined) return;
  tabs.querySelectorAll('button').forEach(b => b.setAttribute('aria-selected', b.dataset.level === level));
  const section = tabs.parentElement;
  section.querySelectorAll('.level').forEach(part => { part.hidden = part.dataset.level !== level; });
  visible(section);
}));
dark.addEventListener('change', () => { shown.clear(); visible(document); });
visible(document);
"""
)


class Figures:
    """Figures of the page: a container for each, and its data as JSON that no embedded text can close."""

    def __init__(self) -> None:
        self.count = 0

    def place(self, figure: go.Figure) -> str:
        name = f"figure-{self.count}"
        self.count += 1
        data = figure.to_json().replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
        height = int(figure.layout.height)
        return (
            f'<div class="figure" id="{name}" style="min-height:{height}px"></div>'
            f'<script type="application/json" id="data-{name}">{data}</script>'
        )


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """HTML table.  Columns with names that start with `<` are text (left), others numbers (right)."""
    kinds = [' class="text"' if name.startswith("<") else "" for name in columns]
    head = "".join(f"<th{kind}>{cell_text(name.removeprefix('<'))}</th>" for name, kind in zip(columns, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell_text(cell)}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def count_text(number: int, noun: str) -> str:
    """Number with its noun: `1 seed`, `2 seeds`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def cell_text(cell: object) -> str:
    """HTML of a plain text or number, also valid inside an attribute."""
    text = f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else "" if cell is None else str(cell)
    return escape(escape_line(text))


def preformatted(text: str) -> str:
    """HTML of a file's lines."""
    return f"<pre>{escape(escape_text(text))}</pre>"


def error_text(error: float | None) -> str:
    """Relative error as text; None or NaN stand for a non-finite one."""
    return f"{error:.1e}" if error is not None and isfinite(error) else "not finite"


class Section(NamedTuple):
    anchor: str
    title: str
    html: str


def html_section(anchor: str, title: str, lead: str, *parts: str) -> Section:
    """Section of a page.  title: also in the navigation; parts: HTML; all others are text, with commands in `backticks`."""
    lead_html = re.sub("`([^`]+)`", r"<code>\1</code>", cell_text(lead))
    html = f'<section id="{anchor}"><h2>{cell_text(title)}</h2><p>{lead_html}</p>{"".join(parts)}</section>'
    return Section(anchor, title, html)


def html_tabs(parts: dict[str, str]) -> str:
    """Tabs, one per part, in order; only the first is drawn at once."""
    names = list(parts)
    buttons = "".join(
        f'<button data-level="{cell_text(name)}" aria-selected="{str(name == names[0]).lower()}">{cell_text(name)}</button>'
        for name in names
    )
    bodies = "".join(
        f'<div class="level" data-level="{cell_text(name)}"{"" if name == names[0] else " hidden"}>{body}</div>'
        for name, body in parts.items()
    )
    return f'<div class="tabs">{buttons}</div>{bodies}'


def html_document(title: str, subtitle: str, sections: Sequence[Section], again_s: int | None = None) -> str:
    """Complete page.  title, subtitle: text.  again_s: the browser reloads after this many seconds."""
    refresh = "" if again_s is None else f'<meta http-equiv="refresh" content="{again_s}">'
    nav = "".join(f'<a href="#{anchor}">{cell_text(name)}</a>' for anchor, name, _ in sections)
    body = "".join(part.html for part in sections)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'{refresh}<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{cell_text(title)}</title><style>{_CSS}</style>"
        f"<script>{get_plotlyjs()}</script></head><body><header><h1>{cell_text(title)}</h1><p>{cell_text(subtitle)}</p><nav>{nav}</nav></header>"
        f"<main>{body}</main><footer>tilefarm</footer><script>{_SCRIPT}</script></body></html>"
    )
