"""The documentation site: how guides become its pages, and that it can be built without a warning.

test_guide_commands.py and tests/acceptance/test_guides.py check what the guides say.
"""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from support.guide import DOCS
from support.lists import each

import docs_reference
import docs_site
from tracked_wheel import ROOT, tracked_files
from txstream.cli.main import parser
from txstream.state.sql.framework_tables import VERSION_TABLE, metadata
from txstream.zookeeper.paths import Paths


@each(
    ("text", "folder", "shown"),
    [
        ("[a](state.md#types)", "docs", "[a](/state.md#types)"),
        ("[a](../state.md)", "docs/reference", "[a](/state.md)"),
        ("[a](docs/state.md)", "", "[a](/state.md)"),
        ("[a](../README.md#commands)", "docs", "[a](/overview.myst#commands)"),
        ("[a](README.md)", "docs", "[a](/index.myst)"),
        ("[`x`](../spouts/kafka/__init__.py)", "docs", "[`x`](repository:spouts/kafka/__init__.py)"),
        ("[a](../txstream/api/)", "docs", "[a](repository:txstream/api)"),
        ("[a](#here) [b](https://example.org/x)", "docs", "[a](#here) [b](https://example.org/x)"),
        ("![a](benchmarks/a.svg)", "", "![a](../benchmarks/a.svg)"),
        ("```python\nrows[0](x)\n```", "docs", "```python\nrows[0](x)\n```"),
    ],
)
def test_links_lead_to_pages_or_to_files_of_the_repository(text: str, folder: str, shown: str) -> None:
    assert docs_site.relink(text, folder) == shown


def test_a_docstring_becomes_restructuredtext() -> None:
    docstring = "Takes `a*b` and `X`s, or *args and sasl_.\n\nn, m: how\n    many.\nk: which"
    text, terms = docs_site.to_rst(docstring).split("\n\n")
    assert text == "Takes ``a*b`` and ``X``\\ s, or \\*args and sasl\\_."
    assert terms == "``n, m``\n    how\n    many.\n``k``\n    which"


def test_every_page_is_in_the_index() -> None:
    listed = docs_site.groups((DOCS / "README.md").read_text(encoding="utf-8"))
    names = [name for group in listed.values() for name in group]
    pages = [path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")]
    built = [page for page in pages if not page.startswith("_build/")]
    assert sorted(names) == sorted(set(built) - {"README"})
    assert all(listed.values())


def test_the_tables_and_their_columns_are_described() -> None:
    described = {name: list(columns) for name, (_, columns) in docs_reference.TABLES.items()}
    assert described.pop(VERSION_TABLE) == ["version_num"]
    assert described == {
        name: [column.name for column in table.columns] for name, table in metadata.tables.items()
    }


def test_the_znodes_are_described() -> None:
    paths, described = Paths("", "x"), docs_reference.ZNODES
    known = (paths.identity, f"{paths.leader}/", paths.epoch, paths.current, paths.asked, paths.answered)
    assert {path.removeprefix("/x/") for path in known} <= set(described)
    architecture = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8")
    block = architecture.partition("/txstream/topologies/<id>/\n")[2].partition("```")[0]
    shown = [line.split()[0].replace("<txid>", "TXID") for line in block.splitlines() if line.strip()]
    assert shown == list(described)


def test_the_reference_has_every_command() -> None:
    text = docs_reference.commands()
    for name, command in parser().commands.items():
        for below in getattr(command, "commands", None) or [None]:
            assert f"## txstream {name}{f' {below}' if below else ''}\n" in text


# --- built -------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The ids and the links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" and value:
                self.ids.add(value)
            if name in ("href", "src") and value:
                self.links.append(value)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_site_is_built_without_a_warning_and_every_link_in_it_leads_somewhere(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q"]
    done = subprocess.run(
        [*build, "-d", tmp_path / "read", DOCS, tmp_path / "html"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    site = tmp_path / "html"
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert site / "index.html" in pages
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link == "#":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in pages[target].ids):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []
    served = {link for page in pages.values() for link in page.links if link.startswith(("http:", "//"))}
    assert served == set(), "the site loads nothing from elsewhere"
    sources = site / "source"
    shown = {path.relative_to(sources).with_suffix("").as_posix() for path in sources.rglob("*.html")}
    folders = {str(parent) for path in tracked_files() for parent in path.parents}
    assert shown <= {str(path) for path in tracked_files()} | folders
