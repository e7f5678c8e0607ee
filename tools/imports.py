"""Which module imports which, read from the sources: for the import rule, and for tools/affected.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def module_files(package: Path, name: str) -> dict[str, Path]:
    """The modules of a package on disk, name -> file, including those that nothing imports."""
    found = {name: package / "__init__.py"}
    for path in sorted(package.rglob("*.py")):
        if path.name != "__init__.py":
            found[".".join([name, *path.relative_to(package).with_suffix("").parts])] = path
        elif path.parent != package:
            found[".".join([name, *path.parent.relative_to(package).parts])] = path
    return found


def imported_names(source: str, *, for_checkers: bool = False) -> Iterator[tuple[int, str]]:
    """Line and full name of every absolute import in a source, inside functions too. Imports for the type
    checker alone never run; they count only with `for_checkers`."""
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if (
            not for_checkers
            and isinstance(node, ast.If)
            and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        ):
            pending.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value
        pending.extend(ast.iter_child_nodes(node))
