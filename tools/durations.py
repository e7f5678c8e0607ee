"""What each file of tests took, by lane: tests/durations.json, from which files are given to processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
DURATIONS: Final = ROOT / "tests" / "durations.json"


def recorded(path: Path = DURATIONS) -> dict[str, dict[str, tuple[int, float]]]:
    """Return what the recorded runs took: lane -> file -> number of cases and seconds."""
    found: dict[str, dict[str, tuple[int, float]]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def record(
    lane: str,
    files: Mapping[str, tuple[int, float]],
    path: Path = DURATIONS,
    root: Path = ROOT,
    *,
    whole: bool = False,
) -> None:
    """Note what each file took. Files that are gone lose their notes, and so do, after a run of the whole
    lane, those that have no test in it any more: the process that is given one would have less to do."""
    notes = recorded(path)
    notes[lane] = ({} if whole else notes[lane]) | {
        file: (cases, round(seconds, 1)) for file, (cases, seconds) in files.items()
    }
    lanes = []
    for name, took in notes.items():
        lines = [
            f"    {json.dumps(file)}: {json.dumps(took[file])}"
            for file in sorted(took)
            if (root / file).exists()
        ]
        lanes.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }")
    path.write_text("{\n" + ",\n".join(lanes) + "\n}\n", encoding="utf-8")
