"""All errors have one root, the project's form of name, and an exit status that scripts may rely on."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import inspect
import pkgutil
import re
from pathlib import Path

from support.guide import DOCS
from support.lists import each

import txstream
from txstream.core import errors
from txstream.core.errors import BatchFailedError, FailedException, FencedError, TxstreamError, UsageError

ALL = [
    value for value in vars(errors).values() if inspect.isclass(value) and value.__module__ == errors.__name__
]


@each("error", ALL, ids=lambda error: error.__name__)
def test_every_error_has_the_one_root_a_name_that_ends_in_error_and_a_sentence(
    error: type[Exception],
) -> None:
    assert issubclass(error, TxstreamError)
    assert error.__name__.endswith("Error")
    assert error.__doc__
    assert error.__name__ not in vars(builtins), "it would hide a builtin"


@each("error", ALL, ids=lambda error: error.__name__)
def test_the_exit_status_says_usage_fenced_or_failed(error: type[TxstreamError]) -> None:
    if issubclass(error, UsageError):
        assert error.exit_status == 2
    elif issubclass(error, FencedError):
        assert error.exit_status == 3
    else:
        assert error.exit_status == 1


def test_storms_name_is_an_alias() -> None:
    assert FailedException is BatchFailedError


@each("name", ["PartitionUnavailableError", "ShortReadError", "ShortBatchError", "BatchTimeoutError"])
def test_what_another_attempt_may_mend_is_replayed_without_limit(name: str) -> None:
    assert issubclass(getattr(errors, name), BatchFailedError)


@each("name", ["DataLostError", "DecodeError", "StateValueError", "CorruptStateError"])
def test_what_no_attempt_can_mend_is_not(name: str) -> None:
    assert not issubclass(getattr(errors, name), BatchFailedError)


def bases_of_classes() -> dict[str, set[str]]:
    """The bases of every class of the package, as they are written, by the class's full name."""
    found: dict[str, set[str]] = {}
    for module in pkgutil.walk_packages(txstream.__path__, "txstream."):
        spec = importlib.util.find_spec(module.name)
        assert spec is not None
        assert spec.origin is not None
        for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[f"{module.name}.{node.name}"] = {ast.unparse(base) for base in node.bases}
    return found


def test_exceptions_that_users_may_see_have_the_root() -> None:
    """Otherwise `except TxstreamError` would miss them. Those in `inside` never reach a user as they are."""
    inside = {
        "txstream.api.rows.UnfitValueError",
        "txstream.plugins.doctor.checks.WrongError",  # becomes a line of what was checked
        "txstream.plugins.formats.schema_registry.UnresolvableError",  # becomes a DecodeError
        "txstream.plugins.change.taking_out.LeftOutError",  # becomes a note of what was compared
        "txstream.engine.states.state_cells.UnfitCellError",  # re-raised with its state, also by `run_bolt`
        "txstream.engine.batch.executor_failures.TaskFailedError",
        "txstream.zookeeper.tree.LostAnswerError",
        "txstream.zookeeper.tree.RefusedError",
    }
    plain = {
        name
        for name, kind in vars(builtins).items()
        if inspect.isclass(kind) and issubclass(kind, Exception) and not issubclass(kind, Warning)
    }
    found = {name for name, bases in bases_of_classes().items() if plain & bases}
    public = {name for name in found if not name.rpartition(".")[2].startswith("_")}
    assert public == inside | {"txstream.core.errors.TxstreamError"}


def test_the_runbook_has_every_error_with_its_meaning_and_remedy() -> None:
    classes = {name.rpartition(".")[2]: bases for name, bases in bases_of_classes().items()}
    expected, known = {"TxstreamError"}, set[str]()
    while expected != known:
        known = set(expected)
        expected |= {name for name, bases in classes.items() if bases & known}
    guide = (DOCS / "errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+Error`(?:, `\w+Error`)*) \| (\S.*) \| (\S.*) \|$", guide, re.M)
    told = [name for names, _, _ in rows for name in re.findall(r"\w+", names)]
    in_tests = re.findall(r"`(\w+Error)`", guide.partition("\n**In tests")[2])
    assert sorted([*told, *in_tests]) == sorted(
        name for name in expected if name != "TxstreamError" and not name.startswith("_")
    )
