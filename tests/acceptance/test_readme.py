"""The README's quick start, taken from the README itself; test_guides.py has its other commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support.tables import read_counts

from tracked_wheel import copy_tracked

README = Path(__file__).parents[2] / "README.md"


def code_blocks(language: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)
    return [code for found, code in blocks if found == language]


def quick_start() -> str:
    """Return the block that installs txstream and runs the program."""
    (found,) = [block for block in code_blocks("") if "pip install" in block]
    return found


def test_the_quick_start_typed_from_an_empty_folder(tmp_path: Path) -> None:
    copy_tracked(tmp_path / "txstream")
    folder = tmp_path / "words"
    folder.mkdir()
    (program,) = code_blocks("python")
    (folder / "word_count.py").write_text(program, encoding="utf-8")
    # The clone is installed; its dependencies are found where these tests have them, not fetched again.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TXSTREAM_")}
    environment |= {"PIP_NO_DEPS": "1", "PIP_IGNORE_INSTALLED": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    typed = ["bash", "-e", "-x", "-o", "pipefail", "-c"]
    try:
        done = subprocess.run(
            [*typed, quick_start()],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        subprocess.run(
            [*typed, ". .venv/bin/activate; txstream down"], cwd=folder, env=environment, check=False
        )
    assert done.returncode == 0, done.stderr
    assert read_counts(f"sqlite:///{folder / '.txstream' / 'state.db'}", "word_count") == {
        "the": 2,
        "cat": 1,
        "dog": 1,
    }
    assert "produced 2 records into topic lines\n" in done.stdout
    # `state top` and `batches` show what the run has counted.
    assert re.search(r"^ the +2 ", done.stdout, re.M), done.stdout
    assert re.search(r"^ +1 .*\blines/[01]", done.stdout, re.M), done.stdout
    assert (folder / ".venv" / "bin" / "txstream").exists()
