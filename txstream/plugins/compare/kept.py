"""Comparisons that were made in a data directory, for the page: each a JSON file in its folder `compare`.

Invariants.
- A file is written under another name and then renamed, so what is listed is whole.
- The newest `MOST_KEPT` stay. Names sort by time.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from txstream.core.errors import TxstreamError

MOST_KEPT = 100
_NAME = re.compile(r"\d{8}T\d{6}-[0-9a-f]{6}")


class UnknownComparisonError(TxstreamError):
    """No comparison of this name is kept."""


def keep(data_dir: Path, document: Mapping[str, Any]) -> str:
    """Keep a comparison, a JSON object, and return its name. Raises OSError."""
    folder = _folder(data_dir)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    unfinished = folder / f".{name}"
    unfinished.write_text(json.dumps(document), encoding="utf-8")
    unfinished.replace(folder / f"{name}.json")
    for old in kept(data_dir)[MOST_KEPT:]:
        (folder / f"{old}.json").unlink(missing_ok=True)
    return name


def kept(data_dir: Path) -> list[str]:
    """Return the names of the comparisons that are kept, the newest first."""
    names = (file.stem for file in _folder(data_dir).glob("*.json"))
    return sorted(filter(_NAME.fullmatch, names), reverse=True)


def read(data_dir: Path, name: str) -> dict[str, Any]:
    """Return a comparison as it was kept. Raises UnknownComparisonError."""
    try:
        if not _NAME.fullmatch(name):
            raise FileNotFoundError
        found: dict[str, Any] = json.loads((_folder(data_dir) / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnknownComparisonError(f"there is no comparison {name!r} in {_folder(data_dir)}") from error
    return found


def _folder(data_dir: Path) -> Path:
    return data_dir / "compare"
