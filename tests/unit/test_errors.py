"""All errors have one root, the project's names, and an exit status that scripts may rely on."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import inspect
import pkgutil
from pathlib import Path

import pytest

import txstream
from txstream.api import errors
from txstream.api.errors import BatchFailedError, FailedException, FencedError, TxstreamError, UsageError

ALL = [
    value for value in vars(errors).values() if inspect.isclass(value) and value.__module__ == errors.__name__
]


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_every_error_has_the_one_root_a_name_that_ends_in_error_and_a_sentence(
    error: type[Exception],
) -> None:
    assert issubclass(error, TxstreamError)
    assert error.__name__.endswith("Error")
    assert error.__doc__
    assert error.__name__ not in vars(builtins), "it would hide a builtin"


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_the_exit_status_says_usage_fenced_or_failed(error: type[TxstreamError]) -> None:
    if issubclass(error, UsageError):
        assert error.exit_status == 2
    elif issubclass(error, FencedError):
        assert error.exit_status == 3
    else:
        assert error.exit_status == 1


def test_storms_name_is_an_alias() -> None:
    assert FailedException is BatchFailedError


@pytest.mark.parametrize(
    "name", ["PartitionUnavailableError", "ShortReadError", "ShortBatchError", "BatchTimeoutError"]
)
def test_what_another_attempt_may_mend_is_replayed_without_limit(name: str) -> None:
    assert issubclass(getattr(errors, name), BatchFailedError)


@pytest.mark.parametrize("name", ["DataLostError", "DecodeError", "StateValueError", "CorruptStateError"])
def test_what_no_attempt_can_mend_is_not(name: str) -> None:
    assert not issubclass(getattr(errors, name), BatchFailedError)


def test_exceptions_that_users_may_see_have_the_root() -> None:
    """Or `except TxstreamError` would miss them. A few never reach a user as they are."""
    inside = {
        "txstream.api.rows.UnfitValueError",
        "txstream.engine.batch.cells.UnfitCellError",  # told with its state, by `map_state` and by `run_bolt`
        "txstream.engine.batch.stage.TaskFailedError",
        "txstream.zookeeper.tree.LostAnswerError",
        "txstream.zookeeper.tree.RefusedError",
    }
    plain = {
        name
        for name, kind in vars(builtins).items()
        if inspect.isclass(kind) and issubclass(kind, Exception) and not issubclass(kind, Warning)
    }
    found: set[str] = set()
    for module in pkgutil.walk_packages(txstream.__path__, "txstream."):
        spec = importlib.util.find_spec(module.name)
        assert spec is not None
        assert spec.origin is not None
        for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and plain & {ast.unparse(base) for base in node.bases}:
                found.add(f"{module.name}.{node.name}")
    public = {name for name in found if not name.rpartition(".")[2].startswith("_")}
    assert public == inside | {"txstream.api.errors.TxstreamError"}
