"""`txstream.testing` itself: its names load when they are used, and it needs no test framework."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

from support.lists import each

import txstream.testing


def imports_for_type_checkers() -> dict[str, str]:
    """Return name -> module, as imported under `if TYPE_CHECKING:`."""
    tree = ast.parse(Path(txstream.testing.__file__).read_text(encoding="utf-8"))
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: str(node.module)
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_the_lazy_table_and_the_imports_for_type_checkers_agree() -> None:
    assert imports_for_type_checkers() == dict(txstream.testing._HOME_OF)
    assert dir(txstream.testing) == sorted(txstream.testing.__all__) == sorted(txstream.testing._HOME_OF)


@each("name", txstream.testing.__all__)
def test_every_name_resolves_to_what_its_home_has(name: str) -> None:
    home = importlib.import_module(txstream.testing._HOME_OF[name])
    assert getattr(txstream.testing, name) is getattr(home, name)


def test_everything_loads_without_pytest_and_the_package_alone_loads_no_engine() -> None:
    program = (
        "import sys, txstream.testing as t\n"
        "print([m for m in ('pyspark', 'sqlalchemy', 'pyarrow', 'txstream.engine') if m in sys.modules])\n"
        "[getattr(t, name) for name in t.__all__]\n"
        "print([m for m in ('pytest', 'hypothesis', 'kafka') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]
