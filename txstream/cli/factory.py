"""MODULE:FACTORY: finds it, calls it, and says which of the user's code the executors need.

The working directory is first on the path, as for `python -m`.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import os
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from txstream.cli.packaging import folder_files, write_zip
from txstream.cli.parameters import keyword_arguments
from txstream.core.errors import TxstreamError, UsageError
from txstream.core.wording import a

if TYPE_CHECKING:
    from txstream.api.topology import Topology

FRAMEWORK = "txstream"


class FactoryError(TxstreamError):
    """The user's factory raised, or returned something other than a topology."""

    exit_status: ClassVar[int] = 1


def put_working_directory_first() -> None:
    """Put the working directory first on the path: a user's modules must win over others of the same name."""
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)


@contextlib.contextmanager
def user_code_prints_to_stderr() -> Iterator[None]:
    """Send to standard error what the user's code and its child processes print on standard output, which is
    for a command's own data."""
    sys.stdout.flush()
    ours = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)


def load_topology(target: str, pairs: Sequence[str]) -> Topology:
    """Return the topology that MODULE:FACTORY makes from the parameters.

    Raises UsageError for a bad MODULE, FACTORY or parameter, FactoryError when FACTORY raises or returns
    something else.
    """
    from txstream.api.topology import Topology

    with user_code_prints_to_stderr():
        factory = load_factory(target)
        arguments = keyword_arguments(factory, pairs, target)
        try:
            topology = factory(**arguments)
        except (Exception, SystemExit) as error:
            raise FactoryError(f"{target} raised {_described(error)}") from error
    if not isinstance(topology, Topology):
        raise FactoryError(
            f"{target} returned {_a(topology)}, not a Topology; end it with `return builder.build()`"
        )
    return topology


def load_factory(target: str) -> Callable[..., Any]:
    """Return the function that MODULE:FACTORY names. Raises UsageError."""
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise UsageError(
            f"{target!r} is not MODULE:FACTORY; write for example txstream.examples.word_count:topology"
        )
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise UsageError(f"{module_name!r} is a file; name the module: {dotted}:{name}")
    put_working_directory_first()
    module = _import(module_name, target)
    try:
        factory = getattr(module, name)
    except AttributeError:
        raise UsageError(f"module {module_name!r} has no {name!r}; {_candidates(module)}") from None
    if not callable(factory):
        raise UsageError(f"{target} is {_a(factory)}, not a function that returns a topology")
    return factory  # type: ignore[no-any-return]


def _import(module_name: str, target: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise UsageError(
                f"there is no module {missing!r} in {Path.cwd()} or among the installed packages; "
                f"{target!r} must be MODULE:FACTORY as Python would import it from here"
            ) from error
        raise UsageError(f"module {module_name!r} cannot be imported: {_described(error)}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"module {module_name!r} cannot be imported: {_described(error)}") from error


def _candidates(module: Any) -> str:
    found = sorted(
        name
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and not isinstance(value, type)
        and getattr(value, "__module__", None) == module.__name__
    )
    return f"its functions are {', '.join(found)}" if found else "it has no functions"


def _described(error: BaseException) -> str:
    """Return the error's name and message, with the deepest place in the user's own files."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if Path.cwd() in path.parents:
            place = f" ({path.name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{place}"


def _a(value: object) -> str:
    return "None" if value is None else a(type(value).__name__)


# --- shipping ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def shipped_module(target: str) -> Iterator[tuple[str, ...]]:
    """Yield the files that bring MODULE's top-level module to the executors, and with it those beside it that
    it imports, at any place and over any number of modules: a module's own file, or a zip of a package, which
    lasts as long as the block. Nothing for what is installed, such as txstream's examples."""
    found = _own_modules(target)
    with tempfile.TemporaryDirectory(prefix="txstream-") as temporary:
        yield tuple(_shipped(Path(temporary), name, files) for name, files in found.items() if files)


def imported_by(target: str) -> set[str]:
    """Return the top-level modules that MODULE and what is shipped with it import, and that are neither
    shipped nor of Python's own library: executors must have these."""
    found = _own_modules(target)
    shipped = {name for name, files in found.items() if files}
    imported = set().union(*(_imported(files.values()) for files in found.values()))
    return imported - shipped - sys.stdlib_module_names


def _own_modules(target: str) -> dict[str, dict[PurePosixPath, Path]]:
    """Return the files of MODULE's top-level module and of those beside it that it imports, by module."""
    top = target.partition(":")[0].partition(".")[0]
    found = {top: _files_of(top)}
    homes = _homes(found[top])
    # What is loaded now may have been imported by name; what is imported later stands in the code.
    pending = [*_imported(found[top].values()), *(name for name in [*sys.modules] if "." not in name)]
    while pending:
        name = pending.pop()
        if name not in found:
            files = _files_of(name)
            found[name] = files if homes and _homes(files) <= homes else {}
            pending += _imported(found[name].values())
    return found


def _shipped(folder: Path, name: str, files: Mapping[PurePosixPath, Path]) -> str:
    alone = files.get(PurePosixPath(f"{name}.py"))
    return str(alone or write_zip(folder / f"{name}.zip", dict(files)).path)


def _files_of(top: str) -> dict[PurePosixPath, Path]:
    """Return the files of a top-level module by their names on the path; none for one that is installed."""
    try:
        spec = None if top == FRAMEWORK else importlib.util.find_spec(top)
    except (ValueError, ImportError):  # a module without a spec, such as the program itself
        spec = None
    if spec is None:
        return {}
    folders = [Path(location) for location in spec.submodule_search_locations or []]
    if not folders:
        origin = Path(spec.origin) if spec.has_location and spec.origin else None
        return {} if origin is None or _is_installed(origin) else {PurePosixPath(origin.name): origin}
    if any(_is_installed(folder) for folder in folders):
        return {}
    return {
        PurePosixPath(top) / relative: path for folder in folders for relative, path in folder_files(folder)
    }


def _homes(files: Mapping[PurePosixPath, Path]) -> set[Path]:
    """Return the folders on the path that hold these files."""
    return {path.parents[len(name.parts) - 1].resolve() for name, path in files.items()}


def _imported(files: Iterable[Path]) -> set[str]:
    """Return the top-level names that these files import, inside functions too."""
    names: set[str] = set()
    for file in files:
        if file.suffix != ".py":
            continue
        with contextlib.suppress(
            SyntaxError, ValueError, OSError
        ):  # Python itself says what is wrong with it
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.Import):
                    names.update(alias.name.partition(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    names.add(node.module.partition(".")[0])
    return names


def _is_installed(path: Path) -> bool:
    """Is this in the interpreter's own folders? Executors have installed packages of their own."""
    places = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")}
    return any(place in path.resolve().parents for place in places)
