"""The notebook in `examples/`, executed by Jupyter's own kernel over a real ZooKeeper and on Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from txstream.plugins.local.embedded import Services

NOTEBOOK = Path(__file__).parents[2] / "examples" / "word_count.ipynb"
WORDS = {"the": 4_500, "late": 500}
_CELL_SECONDS = 300


class Watched(NotebookClient):
    """Keeps every text that a display was changed to."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.updates: list[str] = []

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] == "update_display_data":
            self.updates.append(msg["content"]["data"]["text/html"])
        return super().process_message(msg, cell, cell_index)


@pytest.mark.soak  # two runs on Spark in a kernel of its own
def test_the_example_runs_and_shows_what_it_says(
    services: Services, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXSTREAM_ZOOKEEPER", services.zookeeper)
    monkeypatch.setenv("TXSTREAM_DATABASE", sqlite_url)
    monkeypatch.setenv("TXSTREAM_MASTER", "local[2]")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    read: Any = nbformat.read
    notebook = read(NOTEBOOK, as_version=4)
    client = Watched(notebook, timeout=_CELL_SECONDS, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown = {_source(cell): _outputs(cell) for cell in notebook.cells if cell.cell_type == "code"}

    def of(start: str) -> str:
        return next(text for source, text in shown.items() if start in source)

    assert "data:image/svg+xml" in of("builder.build()")
    assert re.search(
        r"<div>notebook-words: ended, txid 8 committed, 4,000 records", of("txstream.run(topology)")
    )
    assert "run of notebook-words (opaque)" in of("txstream.run(topology)")
    assert "image/png" in of("report.plot()")
    assert "image/png" in of("batches.plot()")
    # It was shown while it ran, and replaced in place: at the end by its report.
    assert "run of notebook-words (opaque)" in of("running = txstream.start(topology)")
    assert any("<td" in update and "running" in update for update in client.updates)
    assert any(update.startswith("<div>notebook-words: ") for update in client.updates)
    assert "committed" in of("to_pandas()")
    assert "<table>" in of("inspect.status(")
    assert "<table>" in of("inspect.fsck(")
    assert "<table>" in of("inspect.why(")
    assert "pyarrow.Table" in of("to_arrow()")
    assert f"{{'n': {WORDS['the']}}}" in of("inspect.get(")


def _source(cell: Any) -> str:
    return str(cell.source)


def _outputs(cell: Any) -> str:
    """Return what a cell shows, with the kinds of it."""
    parts = []
    for output in cell.outputs:
        for kind, value in output.get("data", {}).items():
            parts.append(f"{kind}: {value}")
    return "\n".join(parts)
