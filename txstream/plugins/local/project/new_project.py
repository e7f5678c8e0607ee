"""Makes the folder of a new project: whole, or not at all.

Invariant: the folder appears with all its files in one rename. Until then they are in a hidden folder beside
it, which goes when something fails.
"""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from txstream.core.errors import SchemaError, TopologyError, UsageError
from txstream.core.names import validate_topology_id
from txstream.plugins.local.project.what_to_install import Installs, what_to_install

_FILES = {
    "txstream.toml": "txstream.toml.mako",
    "compose.yaml": "compose.yaml.mako",
    ".github/workflows/test.yaml": "test.yaml.mako",
    "requirements.txt": "requirements.txt.mako",
    ".gitignore": "gitignore.mako",
}
TEMPLATES = {
    "counts": {
        "{name}.py": "topology.py.mako",
        "test_{name}.py": "test_topology.py.mako",
        "README.md": "README.md.mako",
        "lines.txt": "lines.txt.mako",
    },
    "mirror": {
        "{name}.py": "mirror.py.mako",
        "test_{name}.py": "test_mirror.py.mako",
        "README.md": "mirror_readme.md.mako",
        "changes.jsonl": "changes.jsonl.mako",
    },
    "windows": {
        "{name}.py": "windows.py.mako",
        "test_{name}.py": "test_windows.py.mako",
        "README.md": "windows_readme.md.mako",
        "clicks.jsonl": "clicks.jsonl.mako",
    },
}
"""What a project is about: its files beside those that every project has."""


def make_project(
    parent: Path, name: str, installs: Installs | None = None, *, template: str = "counts"
) -> list[str]:
    """Make the folder `name` in `parent` and return the names of its files. `installs` is by default this
    very txstream. `template` is one of `TEMPLATES`.

    Raises UsageError for a name that is no module or topology id, for an unknown template, for a folder that
    exists with something in it, and when the folder cannot be written. Then nothing has changed.
    """
    check_name(name)
    if template not in TEMPLATES:
        raise UsageError(f"there is no template {template!r}; known are {', '.join(TEMPLATES)}")
    installs = installs or what_to_install()
    folder = parent / name
    _refuse_used(folder)
    try:
        draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=parent))
    except OSError as error:
        raise UsageError(f"{folder.absolute()} cannot be made: {_reason(error)}") from error
    try:
        contents = {path: text.encode() for path, text in _rendered(name, installs, template).items()}
        if installs.wheel is not None:
            contents[installs.requirement.removeprefix("./")] = installs.wheel
        for path, content in contents.items():
            file = draft / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        draft.chmod(0o777 & ~_umask())  # mkdtemp's folder is for its owner alone
        draft.rename(folder)  # over an empty folder too, and over no other
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        _refuse_used(folder)  # somebody may have filled it meanwhile
        raise UsageError(f"{folder.absolute()} cannot be made: {_reason(error)}") from error
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return sorted(contents)


def check_name(name: str) -> None:
    """Raise UsageError if the name cannot be that of a module, a topology and a table at once."""
    why = _problem(name)
    if why is not None:
        raise UsageError(
            f"{name!r} cannot be the name of a project: {why}; it becomes a folder, a Python module and a "
            f"topology id, so take letters, digits and underscores, for example {_suggestion(name)}"
        )


def _problem(name: str) -> str | None:
    if "/" in name:
        return "it is a path; change to the folder that the project is to be in first"
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name):
        return "it is not a name that `import` takes and that begins with a letter"
    if keyword.iskeyword(name):
        return "it is a word of Python's own"
    if name in sys.stdlib_module_names or name == "conftest" or _is_installed(name):
        return f"there is a module {name} already, which the project's own would hide"
    from txstream.api.state import SqlState

    try:
        validate_topology_id(name)
        SqlState(_table(name), key="word string", value="n bigint")
    except (TopologyError, SchemaError) as error:
        return str(error)
    return None


def _is_installed(name: str) -> bool:
    """Is there an installed module of this name? What lies in the working directory is not installed."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return True
    if spec is None or spec.origin is None:  # a folder without __init__.py, such as the project's own
        return False
    return Path.cwd() not in Path(spec.origin).parents


def _suggestion(name: str) -> str:
    words = "_".join(re.findall("[a-z0-9]+", name.rpartition("/")[2].lower()))
    suggested = words if words[:1].isalpha() else "counts"
    return suggested if suggested != name and _problem(suggested) is None else "counts"


def _table(name: str) -> str:
    return name.lower()


def _rendered(name: str, installs: Installs, template: str) -> dict[str, str]:
    from mako.template import Template

    templates = files("txstream.plugins.local.project")
    return {
        path.format(name=name): Template(  # noqa: S702 - no page: the name has letters, digits and _ alone
            text=templates.joinpath(file).read_text(encoding="utf-8"), strict_undefined=True
        ).render(name=name, table=_table(name), requirement=installs.requirement)
        for path, file in {**_FILES, **TEMPLATES[template]}.items()
    }


def _refuse_used(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder.absolute()} exists and is not a folder; take another name, or remove it")
    try:
        used = folder.is_dir() and any(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder.absolute()} cannot be used: {_reason(error)}") from error
    if used:
        raise UsageError(
            f"the folder {folder.absolute()} has something in it; take another name, or empty it first"
        )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
