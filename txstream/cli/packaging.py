"""Zips for executors: the framework itself, and a user's own package.

Spark puts a `.zip` on the executors' path, but not a `.whl`. The files in a zip carry a fixed time, so the
same code gives the same bytes.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from txstream.core.errors import UsageError

# The folders beside `txstream/` in a checkout that install below it.
_MAPPED = ("spouts", "bolts", "examples", "migrations")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MARKER = "txstream/__init__.py"


@dataclass(frozen=True)
class Package:
    """A zip that was written: its path, its number of files, its size."""

    path: Path
    files: int
    size_bytes: int


def write_package(out: Path) -> Package:
    """Write the installed framework as a zip for `--py-files`. `out` is replaced whole or not at all.

    Raises UsageError if `out` does not end in .zip or cannot be written.
    """
    if out.suffix != ".zip":
        raise UsageError(
            f"{out} must end in .zip: Spark puts a .zip on the executors' path, nothing else; "
            f"try --out {out.with_suffix('.zip').name}"
        )
    return write_zip(out, {**framework_files(), **_entry_points()})


def framework_files() -> dict[PurePosixPath, Path]:
    """Return all files of the installed txstream by their names in the zip. In an editable install the
    folders are in several places, so each subpackage is located by itself."""
    files: dict[PurePosixPath, Path] = {}
    for name in ("txstream", *(f"txstream.{folder}" for folder in _MAPPED)):
        spec = importlib.util.find_spec(name)
        for location in (spec.submodule_search_locations if spec else None) or []:
            inside = PurePosixPath(*name.split("."))
            files.update({inside / relative: path for relative, path in folder_files(Path(location))})
    return files


def _entry_points() -> dict[PurePosixPath, bytes]:
    """Return what tells a driver that runs from the zip which commands, tiers and watchers are in it."""
    try:
        installed = distribution("txstream")
    except PackageNotFoundError:
        return {}
    folder = PurePosixPath(f"txstream-{installed.version}.dist-info")
    named = {"METADATA": f"Metadata-Version: 2.1\nName: txstream\nVersion: {installed.version}\n"}
    named["entry_points.txt"] = installed.read_text("entry_points.txt") or ""
    return {folder / name: text.encode() for name, text in named.items()}


def folder_files(folder: Path) -> Iterator[tuple[PurePosixPath, Path]]:
    """Yield the files below a package's folder with their names relative to it; no caches, nothing hidden."""
    for current, directories, names in os.walk(folder):
        directories[:] = sorted(d for d in directories if d != "__pycache__" and not d.startswith("."))
        for name in sorted(names):
            path = Path(current) / name
            if not name.startswith(".") and path.suffix != ".pyc" and path.is_file():
                yield PurePosixPath(path.relative_to(folder).as_posix()), path


def write_zip(out: Path, files: Mapping[PurePosixPath, Path | bytes]) -> Package:
    """Write `files`, by their names in the zip, to `out`. Raises UsageError if `out` cannot be written."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{out.name}.", dir=out.parent)
        try:
            with os.fdopen(handle, "wb") as sink, zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
                _add_all(archive, files)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(out)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror or error}") from error
    return Package(out, len(files), out.stat().st_size)


def _add_all(archive: zipfile.ZipFile, files: Mapping[PurePosixPath, Path | bytes]) -> None:
    for name, content in sorted(files.items(), key=lambda item: item[0]):
        entry = zipfile.ZipInfo(str(name), _EPOCH)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = 0o644 << 16
        archive.writestr(entry, content if isinstance(content, bytes) else content.read_bytes())


def holds_framework(path: Path) -> bool:
    """Return whether this is a zip with the framework in it, as `txstream package` writes it."""
    if path.suffix != ".zip" or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return _MARKER in archive.namelist()
