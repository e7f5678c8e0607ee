"""The examples in docs/testing.md run as printed."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from support.guide import DOCS, examples, fixtures_of, load, python_of
from support.lists import each

GUIDE = DOCS / "testing.md"
NAMES = [line[4:].partition("(")[0] for line in python_of(GUIDE).splitlines() if line.startswith("def test_")]
# Run by tests/integration/test_testing_on_spark.py.
WITH_SERVICES = ["test_on_spark", "test_a_run_without_spark"]


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    return load(GUIDE, tmp_path_factory.mktemp("guide"))


@each("name", [name for name in NAMES if name not in WITH_SERVICES])
def test_an_example_does_what_it_says(guide: ModuleType, name: str) -> None:
    calls = {function.__name__: (function, calls) for function, calls in examples(guide)}
    function, arguments = calls[name]
    for call in arguments:
        assert not fixtures_of(function, call)
        function(**call)


def test_the_examples_are_there_and_only_those_with_services_need_a_fixture(guide: ModuleType) -> None:
    found = {function.__name__: fixtures_of(function, calls[0]) for function, calls in examples(guide)}
    assert sorted(found) == sorted(NAMES)
    assert len(found) > 10
    assert [name for name, fixtures in found.items() if fixtures] == WITH_SERVICES
