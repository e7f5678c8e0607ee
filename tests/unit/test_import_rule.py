"""The dependency rule: the core imports no client library and none of the edges, the kernel imports no
plug-in, no plug-in another without saying so, no rooms import each other in a circle, and nothing imports the
folders at the root by their bare names.

A fresh interpreter imports the core and reports what came with it, so that an import three modules away
counts too. The source is read as well, so that an import inside a function counts.
"""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath
from typing import Final

import pytest
from support.lists import each

from imports import imported_names, module_files
from rooms import DOORS, KERNEL, arrows_of, floors_of, imports_between, product, room_of
from tracked_wheel import INSTALLS_AS, ROOT, tracked_files

NEEDS: Final[dict[str, set[str]]] = {
    "audit": {"local"},  # batches run again without Spark
    "change": {"audit"},
    "compare": {"local", "notebook", "proof"},
    "delta": {"outbox"},
    "doctor": {"residents", "tracked"},
    "files": set(),
    "formats": set(),
    "local": set(),
    "monitoring": {"outbox", "tracked"},
    "mysql": set(),
    "notebook": set(),
    "outbox": set(),
    "proof": {"local"},  # the simulation's batches
    "residents": set(),
    "testing": {"local", "proof", "tracked"},
    "tracked": set(),
    "web": {"compare", "monitoring", "notebook"},
    "windows": set(),
}
"""Which other plug-ins each plug-in imports."""
MOST_KERNEL_LINES: Final = 30_000
MOST_FILE_LINES: Final = 500
CLIENT_LIBRARIES: Final = (
    "pyspark",
    "py4j",
    "kafka",
    "kazoo",
    "sqlalchemy",
    "alembic",
    "typer",
    "matplotlib",
)
EDGES: Final = tuple(
    f"txstream.{name}"
    for name in (
        *("engine", "state", "zookeeper", "cli", "testing"),
        *("spouts", "bolts", "examples", "migrations"),
        *(f"plugins.{room}" for room in NEEDS if room != "tracked"),  # the acker's ledger is below it
    )
)
FORBIDDEN: Final = CLIENT_LIBRARIES + EDGES
_SHELL: Final = tuple(f"txstream.{name}" for name in ("cli", "inspect", "plugins", "testing", "examples"))
# The packages above each one, which it may not import.
UPPER: Final = {
    "state": (*_SHELL, "txstream.engine", "txstream.zookeeper", "txstream.spouts", "txstream.bolts"),
    "zookeeper": (*_SHELL, "txstream.engine", "txstream.state", "txstream.spouts", "txstream.bolts"),
    "engine": (*_SHELL, "txstream.spouts", "txstream.bolts"),
    "spouts": _SHELL,
    "bolts": _SHELL,
}
BARE_NAMES: Final = frozenset(INSTALLS_AS) - {"txstream"}

# Runs in the fresh interpreter and notes every forbidden import with the modules that led to it.
PROBE: Final = """
import importlib, json, sys
forbidden, modules = json.loads(sys.argv[1])
found = []

def below(name, roots):
    return any(name == root or name.startswith(root + ".") for root in roots)

class Witness:
    def find_spec(self, name, path=None, target=None):
        if below(name, forbidden):
            chain, frame = [], sys._getframe()
            while frame is not None:
                importer = frame.f_globals.get("__name__", "?")
                if importer.split(".")[0] not in ("importlib", "_frozen_importlib", "__main__"):
                    chain.append(importer)
                frame = frame.f_back
            found.append(" <- ".join([name, *dict.fromkeys(chain)]))
        return None

sys.meta_path.insert(0, Witness())
for module in modules:
    importlib.import_module(module)
answer = {
    "found": found,
    "loaded": sorted(name for name in sys.modules if below(name, forbidden)),
    "ours": sorted(name for name in sys.modules if name.startswith("txstream.")),
}
json.dump(answer, sys.stdout)
"""


def core_modules() -> dict[str, Path]:
    """Every module under the rule. The named ones are listed whether they exist or not: a core module that is
    renamed everywhere but here fails the test instead of dropping out of it."""
    core = module_files(ROOT / "txstream" / "api", "txstream.api")
    for name in ("core", "plugins/tracked/acker"):
        module, folder = f"txstream.{name.replace('/', '.')}", ROOT / "txstream" / name
        if folder.is_dir():
            core |= module_files(folder, module)
        else:
            core[module] = folder.with_suffix(".py")
    return core


def probe(
    modules: list[str], *, path: Path = ROOT, forbidden: tuple[str, ...] = FORBIDDEN
) -> dict[str, list[str]]:
    """Import `modules` in a fresh interpreter; return the forbidden imports that were asked for or loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps([FORBIDDEN, modules])],
        cwd=path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, list[str]] = json.loads(done.stdout)
    return answer


@functools.cache
def imports_found() -> list[tuple[PurePosixPath, int, PurePosixPath]]:
    return imports_between(product())


def is_plugin(path: PurePosixPath) -> bool:
    return path.parts[:2] == ("txstream", "plugins") and len(path.parts) > 3


def is_below(name: str, roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


@pytest.fixture(scope="module")
def imported() -> dict[str, list[str]]:
    return probe(list(core_modules()))


def test_core_is_complete() -> None:
    core = core_modules()
    assert {
        "txstream.api",
        "txstream.core.coordinator",
        "txstream.core.errors",
        "txstream.core.semantics",
        "txstream.core.transaction",
        "txstream.plugins.tracked.acker.ledger",
    } <= core.keys()
    assert not [name for name, path in core.items() if not path.is_file()], (
        "a module under the rule is missing"
    )


def test_importing_the_core_brings_no_client_library_and_no_edge(imported: dict[str, list[str]]) -> None:
    assert not imported["found"], "forbidden import <- the modules that led to it"
    assert not imported["loaded"]


def test_core_names_no_client_library_and_no_edge(imported: dict[str, list[str]]) -> None:
    """Not even inside functions, in the core or in whatever else of txstream the core needs."""
    modules = module_files(ROOT / "txstream", "txstream")
    assert core_modules().keys() <= set(imported["ours"])
    wrong = [
        f"{modules[module]}:{line}: {name}"
        for module in imported["ours"]
        for line, name in imported_names(modules[module].read_text(encoding="utf-8"))
        if is_below(name, FORBIDDEN)
    ]
    assert not wrong


@each("lower", UPPER)
def test_nothing_imports_what_stands_above_it(lower: str) -> None:
    """Not even inside functions, but for the names that only the type checker sees."""
    folder = ROOT / (lower if lower in BARE_NAMES else f"txstream/{lower}")
    modules = module_files(folder, f"txstream.{lower}")
    assert modules
    wrong = [
        f"{path}:{line}: {name}"
        for path in modules.values()
        for line, name in imported_names(path.read_text(encoding="utf-8"))
        if is_below(name, UPPER[lower])
    ]
    assert not wrong


def test_rules_and_values_import_nothing_of_ours_but_each_other() -> None:
    """Not even for the type checker."""
    modules = module_files(ROOT / "txstream" / "core", "txstream.core")
    assert len(modules) > 10
    wrong = [
        f"{path}:{line}: {name}"
        for path in modules.values()
        for line, name in imported_names(path.read_text(encoding="utf-8"), for_checkers=True)
        if is_below(name, ("txstream",)) and not is_below(name, ("txstream.core",))
    ]
    assert not wrong


def test_a_long_file_says_at_its_head_why_it_is_one() -> None:
    long = {path: source for path, source in product().items() if len(source.splitlines()) > MOST_FILE_LINES}
    assert long
    silent = [path for path, source in long.items() if "Over 500 lines: " not in (docstring(source) or "")]
    assert not silent


def docstring(source: str) -> str | None:
    return ast.get_docstring(ast.parse(source))


def test_nothing_lies_loose_in_the_hall() -> None:
    """A module of `txstream/` belongs to one of its rooms."""
    loose = {path.name for path in tracked_files() if path.parent == PurePosixPath("txstream")}
    assert loose == {"__init__.py", "__main__.py", "py.typed"}


def test_every_room_says_in_a_sentence_what_it_is_for() -> None:
    rooms = [path for path in tracked_files() if path.name == "__init__.py" and path.parts[0] in INSTALLS_AS]
    assert len(rooms) > 30
    silent = [room for room in rooms if not ast.get_docstring(ast.parse((ROOT / room).read_text("utf-8")))]
    assert not silent


def test_the_kernel_imports_no_plug_in() -> None:
    """Nor does anything else beside the plug-ins, not even in a function or for the type checker. What users
    import from a door is in a plug-in, and is loaded when they ask for it."""
    wrong = [
        f"{path}:{line}: {target}"
        for path, line, target in imports_found()
        if not is_plugin(path) and is_plugin(target) and path not in DOORS
    ]
    assert not wrong


@each("door", sorted(DOORS - {PurePosixPath("txstream/__main__.py")}))
def test_a_door_loads_nothing_before_it_is_asked(door: PurePosixPath) -> None:
    imported = {name for _, name in imported_names((ROOT / door).read_text(encoding="utf-8"))}
    assert imported <= {
        "__future__.annotations",
        "typing.TYPE_CHECKING",
        "txstream.core.lazy_names.home_of",
        "txstream.core.lazy_names.lazily",
    }


def test_a_plug_in_imports_no_other_without_saying_so() -> None:
    found: dict[str, set[str]] = {room: set() for room in NEEDS}
    for path, _, target in imports_found():
        if is_plugin(path) and is_plugin(target) and path.parts[2] != target.parts[2]:
            found[path.parts[2]].add(target.parts[2])
    assert found == NEEDS


@each("room", NEEDS)
def test_a_plug_in_says_what_it_is_and_has_its_tests(room: str) -> None:
    told = (ROOT / "txstream" / "plugins" / room / "README.md").read_text(encoding="utf-8").splitlines()
    assert 8 <= len(told) <= 12
    assert any((ROOT / "tests" / "plugins" / room).glob("test_*.py"))


def test_the_kernel_stays_small_enough_to_be_read() -> None:
    lines = sum(len(source.splitlines()) for path, source in product().items() if room_of(path) in KERNEL)
    assert 20_000 < lines <= MOST_KERNEL_LINES


def test_rooms_do_not_import_each_other_in_circles() -> None:
    arrows = arrows_of(imports_found(), {room_of(path) for path in product()})
    floors = floors_of(arrows)
    assert len(floors) <= 33
    assert max(floors.values()) <= 10
    # The residents need three, and windows five: the contracts, the core, the bolt that they extend, and, for
    # their source, ranges and databases. What goes back looks at all that a topology has, from its ledgers to
    # its place in ZooKeeper. Results that leave need six, dead letters leave as they do, a Delta table needs
    # five.
    assert sum(map(len, arrows.values())) <= 160


def test_rooms_of_the_engine_do_not_import_each_other_in_circles() -> None:
    """Not even for the type checker, or two rooms could only be understood together."""
    modules = module_files(ROOT / "txstream" / "engine", "txstream.engine")
    rooms = room_imports(
        {name: path.read_text(encoding="utf-8") for name, path in modules.items()}, "txstream.engine"
    )
    assert {"batch", "commit", "loop", "start", "states"} <= rooms.keys()
    assert circle(rooms) is None


def room_imports(sources: dict[str, str], package: str) -> dict[str, set[str]]:
    """Return, by room, the other rooms that its modules import. Each folder and file is a room."""
    depth = package.count(".") + 1
    rooms: dict[str, set[str]] = {}
    for name, source in sources.items():
        if name == package:
            continue
        here = rooms.setdefault(name.split(".")[depth], set())
        for _, imported in imported_names(source, for_checkers=True):
            if imported.startswith(f"{package}."):
                here.add(imported.split(".")[depth])
    return {room: imported - {room} for room, imported in rooms.items()}


def circle(rooms: dict[str, set[str]]) -> list[str] | None:
    """Return rooms of which each imports the next, and the last the first. None if there are none such."""
    try:
        list(TopologicalSorter(rooms).static_order())
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return None


def test_nothing_imports_the_folders_by_their_bare_names() -> None:
    sources = [path for path in tracked_files() if path.suffix == ".py"]
    assert len(sources) > 10
    wrong = [
        f"{path}:{line}: {name}; write txstream.{name}"
        for path in sources
        for line, name in imported_names((ROOT / path).read_text(encoding="utf-8"))
        if name.split(".")[0] in BARE_NAMES
    ]
    assert not wrong


# --- the checks themselves ---------------------------------------------------------------------------------


def test_probe_sees_an_import_that_is_two_modules_away(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text("import inner")
    (tmp_path / "inner.py").write_text("try:\n    import kazoo.client\nexcept ImportError:\n    raise")
    answer = probe(["outer"], path=tmp_path)
    assert answer["found"][0] == "kazoo <- inner <- outer"
    assert "kazoo.client" in answer["loaded"]


def test_a_circle_of_three_rooms_is_seen() -> None:
    sources = {
        "home": "from home import hall",
        "home.hall": "import home.attic.roof",
        "home.attic.roof": "def f():\n    from home.cellar import door",
        "home.cellar": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from home import hall",
        "home.garden": "import home.hall",
    }
    found = circle(room_imports(sources, "home"))
    assert found is not None
    assert set(found) == {"hall", "attic", "cellar"}
    sources["home.cellar"] = ""
    assert circle(room_imports(sources, "home")) is None


@each(
    ("source", "expected"),
    [
        ("import spouts.kafka", ["spouts.kafka"]),
        ("from bolts import aggregate as a", ["bolts.aggregate"]),
        ("def f():\n    import examples", ["examples"]),
        ("import importlib\nimportlib.import_module('migrations.env')", ["importlib", "migrations.env"]),
        ("from . import spouts\nfrom .bolts import sql", []),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import kafka", ["typing.TYPE_CHECKING"]),
    ],
)
def test_imports_are_found_wherever_they_are_written(source: str, expected: list[str]) -> None:
    assert [name for _, name in sorted(imported_names(source))] == expected
