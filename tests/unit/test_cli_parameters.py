"""`-p NAME=VALUE`: what each annotation accepts, and how a wrong value is reported."""

from __future__ import annotations

import enum
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from support.lists import each

from txstream.cli.parameters import convert, keyword_arguments, split_pairs
from txstream.core.errors import UsageError


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@each(
    ("kind", "text", "value"),
    [
        (str, "a=b c", "a=b c"),
        (int, "-12", -12),
        (int, "1_000", 1000),
        (float, "2.5e3", 2500.0),
        (float, "3", 3.0),
        (bool, "true", True),
        (bool, "No", False),
        (bool, "0", False),
        (Path, "a/b", Path("a/b")),
        (Literal["opaque", "transactional"], "opaque", "opaque"),
        (Literal[1, 2], "2", 2),
        (Color, "red", Color.RED),
        (Color, "BLUE", Color.BLUE),
        (int | None, "7", 7),
        (None | int, "none", None),
        (str | None, "", None),
        (int | str, "7", 7),
        (str | int, "7", 7),
        (int | str, "seven", "seven"),
        (list[int], "1, 2,3", [1, 2, 3]),
        (list[str], "", []),
        (list, "a,b", ["a", "b"]),
        (tuple[int, ...], "1,2", (1, 2)),
        (tuple[str, int], "a,2", ("a", 2)),
        (set[str], "a,b,a", {"a", "b"}),
        (Sequence[str], "a,b", ["a", "b"]),
        (Annotated[int, "of something"], "5", 5),
        (Any, "5", "5"),
    ],
)
def test_values(kind: Any, text: str, value: Any) -> None:
    converted = convert(text, kind)
    assert converted == value
    assert type(converted) is type(value)


def takes(kind: Any) -> Callable[..., None]:
    def factory(value: Any) -> None: ...

    factory.__annotations__["value"] = kind
    return factory


@each(
    ("kind", "text", "expected"),
    [
        (int, "two", "an int"),
        (int, "1.5", "an int"),
        (int, "", "an int"),
        (float, "x", "a float"),
        (float, "inf", "a finite number"),
        (bool, "maybe", "true or false"),
        (Literal["a", "b"], "c", "a or b"),
        (Color, "green", "red or blue"),
        (int | None, "x", "an int or none"),
        (list[int], "1,x", "an int"),
        (tuple[str, int], "a", "2 values"),
        (bytes, "x", "bytes, which cannot be written on a command line"),
        (dict[str, int], "a=1", "cannot be written on a command line"),
        ("NotHere", "x", "NotHere"),
    ],
)
def test_a_wrong_value_names_parameter_expected_and_given(kind: Any, text: str, expected: str) -> None:
    with pytest.raises(UsageError) as refused:
        keyword_arguments(takes(kind), [f"value={text}"], "mine:topology")
    assert expected in str(refused.value)
    assert f"-p value={text}" in str(refused.value)
    assert "mine:topology" in str(refused.value)


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    def factory(topic: str = "lines", *, parallelism: int = 2) -> None: ...

    with pytest.raises(UsageError, match=r"'tpoic'; its parameters are topic, parallelism"):
        keyword_arguments(factory, ["tpoic=x"], "mine:topology")
    with pytest.raises(UsageError, match="no parameters"):
        keyword_arguments(lambda: None, ["topic=x"], "mine:topology")


def test_what_is_required_is_asked_for() -> None:
    def factory(topic: str, table: str, n: int = 1) -> None: ...

    with pytest.raises(UsageError, match=r"needs -p table=\.\.\."):
        keyword_arguments(factory, ["topic=x"], "mine:topology")


def test_a_default_stands_in_for_an_annotation() -> None:
    def factory(n=1, ratio=0.5, on=False, name="x", other=None): ...  # type: ignore[no-untyped-def]

    given = ["n=2", "ratio=1", "on=yes", "name=3", "other=4"]
    found = keyword_arguments(factory, given, "mine:topology")
    assert found == {"n": 2, "ratio": 1.0, "on": True, "name": "3", "other": "4"}


def test_a_factory_with_any_keyword_takes_any_name() -> None:
    def factory(n: int = 1, **more: str) -> None: ...

    assert keyword_arguments(factory, ["n=2", "x=3"], "mine:topology") == {"n": 2, "x": "3"}


def test_a_class_or_an_instance_is_a_factory_too() -> None:
    class Factory:
        def __init__(self, n: int = 0) -> None:
            self.n = n

        def __call__(self, flag: bool = False) -> None: ...

    assert keyword_arguments(Factory, ["n=3"], "mine:Factory") == {"n": 3}
    assert keyword_arguments(Factory(), ["flag=on"], "mine:factory") == {"flag": True}


@each("pairs", [["topic"], ["=x"], [" =x"], ["a=1", "a=2"]])
def test_pairs_that_are_none(pairs: list[str]) -> None:
    with pytest.raises(UsageError, match="-p"):
        split_pairs(pairs, "-p")


def test_a_value_may_hold_anything_after_the_first_equals_sign() -> None:
    assert split_pairs(["url=a=b", "empty="], "-p") == {"url": "a=b", "empty": ""}


def test_the_older_spelling_of_a_union_means_the_same() -> None:
    assert convert("7", typing.Optional[int]) == 7  # noqa: UP045
    assert convert("none", typing.Union[int, None]) is None  # noqa: UP007
