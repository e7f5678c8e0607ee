"""What the documentation site has beyond its guides: a Sphinx extension, used by docs/conf.py.

The guides are written for a plain git host, too. So the site begins with docs/README.md, has README.md as a
page beside the guides, shows the files of the repository that guides link to as pages of its own, and fills
the pages of docs/reference/ from the code: a line `<!-- generated: NAME -->` there becomes what
`docs_reference.GENERATED[NAME]` returns.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from html import escape
from pathlib import PurePosixPath
from typing import Any, Final

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from docs_reference import GENERATED
from tracked_wheel import ROOT, tracked_files

DOCS: Final = ROOT / "docs"
SOURCE: Final = "source"  # where the site shows files of the repository
SCHEME: Final = "repository:"
READMES: Final = {"README.md": "overview", "docs/README.md": "index"}
"""The page of the site that each is."""

_GROUP = re.compile(r"^\*\*(.+)\*\*$")
_GUIDE = re.compile(r"^- \[([\w./-]+)\.md\]\(")
_MARK = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.M)
_CODE = re.compile(r"^```.*?^```$", re.M | re.S)
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")


def groups(readme: str) -> dict[str, list[str]]:
    """Return the guides that docs/README.md lists, by the bold line above them, without `.md`."""
    found: dict[str, list[str]] = {}
    for line in readme.splitlines():
        if group := _GROUP.match(line):
            found[group[1]] = []
        elif (guide := _GUIDE.match(line)) and found:
            found[list(found)[-1]].append(guide[1])
    return found


def index(guides: str) -> str:
    """Return the site's first page: what somebody wants to do, then the guides, with a table of contents for
    each group of them."""
    tables = [
        "\n".join(["```{toctree}", ":hidden:", f":caption: {group}", "", *names, "```"])
        for group, names in groups(guides).items()
    ]
    first = "```{toctree}\n:hidden:\n\noverview\n```"
    return "\n\n".join([relink(guides.replace("# Guides", "# txstream", 1), "docs"), first, *tables]) + "\n"


def relink(text: str, folder: str) -> str:
    """Return the Markdown of a file in `folder` of the repository with links as pages of docs/ have them: to
    another page by its path, to any other file of the repository by `repository:`."""

    def moved(link: re.Match[str]) -> str:
        path, anchor = posixpath.normpath(posixpath.join(folder, link[1])), link[2] or ""
        if path in READMES:
            return f"](/{READMES[path]}.myst{anchor})"
        if path.startswith("docs/"):
            return f"](/{path.removeprefix('docs/')}{anchor})"
        return f"]({SCHEME}{path})"

    # An image is a file that the site copies, not a page.
    parts = re.split(r"(^```.*?^```$|!\[[^\]]*\]\([^)]*\))", text, flags=re.M | re.S)
    done = [_image(part, folder) if odd % 2 else _LINK.sub(moved, part) for odd, part in enumerate(parts)]
    return "".join(done)


def _image(part: str, folder: str) -> str:
    """Return a block of code as it is, and an image with its path as seen from docs/."""
    if part.startswith("```"):
        return part
    return re.sub(r"\]\(([^)]*)\)$", lambda link: f"]({_from_docs(posixpath.join(folder, link[1]))})", part)


def _from_docs(path: str) -> str:
    return posixpath.relpath(posixpath.normpath(path), "docs")


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    if page == "index":
        source[0] = index((DOCS / "README.md").read_text(encoding="utf-8"))
    elif page == "overview":
        source[0] = relink((ROOT / "README.md").read_text(encoding="utf-8"), "")
    else:
        text = _MARK.sub(lambda mark: GENERATED[mark[1]](), source[0])
        source[0] = relink(text, posixpath.join("docs", posixpath.dirname(page)))


def _lead_to_sources(app: Sphinx, document: nodes.document, page: str) -> None:
    """Lead links to files of the repository to the pages that show them."""
    tracked = _tracked()
    for link in document.findall(nodes.reference):
        target = str(link.get("refuri", ""))
        if not target.startswith(SCHEME):
            continue
        path = target.removeprefix(SCHEME)
        if path not in tracked:
            raise ExtensionError(f"{page} links to {path}, which git does not track")
        _linked(app).add(path)
        link["refuri"] = f"{'../' * page.count('/')}{SOURCE}/{path}.html"


def _tracked() -> dict[str, list[str]]:
    """Return every tracked file, and every folder with what is right below it."""
    found: dict[str, list[str]] = {}
    for path in tracked_files():
        found[str(path)] = []
        for below, folder in zip((path, *path.parents), path.parents, strict=False):
            names = found.setdefault(str(folder), [])
            if str(below) not in names:
                names.append(str(below))
    return found


def _linked(app: Sphinx) -> set[str]:
    found: set[str] = app.__dict__.setdefault("txstream_linked", set())
    return found


def _source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each file and folder that a guide links to, and for the files of such a folder."""
    tracked = _tracked()
    wanted = set(_linked(app))
    for path in [*wanted]:
        wanted.update(below for below in tracked[path] if not tracked[below])
    for path in sorted(wanted):
        body = _folder(path, tracked[path], wanted) if tracked[path] else _file(path)
        title = escape(path)
        yield f"{SOURCE}/{path}", {"title": title, "body": f"<h1>{title}</h1>\n{body}"}, "page.html"


def _folder(path: str, below: list[str], shown: set[str]) -> str:
    items = []
    for name in sorted(below):
        text = escape(PurePosixPath(name).name)
        target = posixpath.relpath(f"{name}.html", posixpath.dirname(path) or ".")
        items.append(
            f'<li><a href="{escape(target)}">{text}</a></li>' if name in shown else f"<li>{text}/</li>"
        )
    return f"<ul>{''.join(items)}</ul>"


def _file(path: str) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    try:
        lexer = get_lexer_for_filename(path)
    except ClassNotFound:
        lexer = TextLexer()
    lines = HtmlFormatter(linenos="inline", lineanchors="L", anchorlinenos=False)
    return f'<div class="highlight-source notranslate">{highlight(text, lexer, lines)}</div>'


_SPAN = re.compile(r"(?<![`\\w])`([^`]+)`(?!`)(\w?)")
_MARKUP = re.compile(r"[*|]|(?<=\w)_(?!\w)")
_TERM = re.compile(r"^([a-z_*][\w*]*(?:, [a-z_][\w]*)*): (.*)$")


def to_rst(docstring: str) -> str:
    """Return one of our docstrings as reStructuredText. They are plain text with `names` in backticks, and
    arguments as lines `name: what it is`, whose further lines are indented."""
    paragraphs = re.split(r"\n[ \t]*\n", docstring)
    return "\n\n".join(_spans(_terms(paragraph)) for paragraph in paragraphs)


def _terms(paragraph: str) -> str:
    """Make a definition list of a paragraph whose lines are all `name: text` or indented."""
    lines = paragraph.rstrip("\n").split("\n")
    if not all(_TERM.match(line) or line.startswith("    ") for line in lines) or not _TERM.match(lines[0]):
        return paragraph
    return "\n".join(
        f"`{found[1]}`\n    {found[2]}" if (found := _TERM.match(line)) else line for line in lines
    )


def _spans(text: str) -> str:
    """Make literals of what is in backticks, and escape what reStructuredText would take for more markup."""
    parts = re.split(
        r"(``.+?``)", _SPAN.sub(lambda s: f"``{s[1]}``" + (f"\\ {s[2]}" if s[2] else ""), text), flags=re.S
    )
    return "".join(part if odd % 2 else _MARKUP.sub(r"\\\g<0>", part) for odd, part in enumerate(parts))


def _docstring(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = to_rst("\n".join(lines)).split("\n")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("doctree-resolved", _lead_to_sources)
    app.connect("html-collect-pages", _source_pages)
    # Source pages come from the links of all pages, so each build reads every page.
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": False}
