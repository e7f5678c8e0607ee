"""`-p NAME=VALUE`: a factory's keyword arguments, converted by their annotations.

A parameter may be annotated with str, int, float, bool, a path, an enum, a Literal, Optional or a union of
these, or a list, tuple or set of them, written with commas. Without an annotation the type of the default
counts; without either, a value stays a string. `${NAME}` in a value is a variable of the environment.
"""

from __future__ import annotations

import enum
import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal, Union

from txstream.core.errors import UsageError
from txstream.core.wording import counted
from txstream.settings.given_secrets import with_variables

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}
_NAMED = {
    str: "text",
    int: "an int",
    float: "a float",
    bool: "a bool (true or false)",
    Path: "a path",
}
_COLLECTIONS: dict[Any, Callable[[list[Any]], Collection[Any]]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    Sequence: list,
    Collection: list,
}


class _ConversionError(Exception):
    """The text is not of the type. The message says what is expected."""


def split_pairs(pairs: Sequence[str], option: str) -> dict[str, str]:
    """Parse NAME=VALUE texts into a mapping. Raises UsageError for any other text and a name given twice."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{option} {pair!r}: write {option} NAME=VALUE")
        name = name.strip()
        if name in found:
            raise UsageError(f"{option} {name} was given twice, as {found[name]!r} and as {value!r}")
        found[name] = value
    return found


def spark_settings(pairs: Sequence[str]) -> dict[str, str]:
    """Return the settings of `--spark-conf`. Raises UsageError."""
    given = split_pairs(pairs, "--spark-conf")
    return {name: with_variables(value, f"--spark-conf {name}") for name, value in given.items()}


def keyword_arguments(factory: Callable[..., Any], pairs: Sequence[str], where: str) -> dict[str, Any]:
    """Return the keyword arguments that `-p` gives to `factory`.

    Raises UsageError, which names the parameter, what it expects, what was given, and the known names.
    """
    given = split_pairs(pairs, "-p")
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where} cannot be called with keyword arguments: {error}") from error
    hints = _hints(factory)
    by_name = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in given:
        if name not in by_name and not takes_any:
            known = ", ".join(by_name)
            raise UsageError(
                f"{where} has no parameter {name!r}; "
                + (f"its parameters are {known}" if known else "it has no parameters")
            )
    missing = [
        name
        for name, parameter in by_name.items()
        if parameter.default is parameter.empty and name not in given
    ]
    if missing:
        raise UsageError(f"{where} needs {', '.join(f'-p {name}=...' for name in missing)}")
    return {
        name: _converted(name, text, _type_of(by_name.get(name), hints.get(name)), where)
        for name, text in given.items()
    }


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return annotations as types, or as text if they cannot be resolved (an import for type checkers)."""
    target = factory if inspect.isroutine(factory) else type(factory).__call__
    if inspect.isclass(factory):
        target = factory.__init__
    try:
        return typing.get_type_hints(target)
    except Exception:  # noqa: BLE001 - annotations are arbitrary code
        return dict(getattr(target, "__annotations__", {}))


def _type_of(parameter: inspect.Parameter | None, hint: Any) -> Any:
    if hint is not None:
        return hint
    default = None if parameter is None else parameter.default
    return type(default) if isinstance(default, (bool, int, float, str, Path)) else str


def _converted(name: str, text: str, kind: Any, where: str) -> Any:
    value = with_variables(text, f"-p {name}")
    try:
        return convert(value, kind)
    except _ConversionError as error:
        raise UsageError(f"-p {name}={text}: {where} expects {error} for {name!r}, not {text!r}") from error


def convert(text: str, kind: Any) -> Any:
    """Convert `text` to a value of the annotation `kind`. _ConversionError says what is expected."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in (Any, str, inspect.Parameter.empty):
        return text
    if origin is typing.Annotated:
        return convert(text, arguments[0])
    if origin is Literal:
        return _one_of(text, {str(choice): choice for choice in arguments}, describe(kind))
    if origin in (Union, types.UnionType):
        return _one_type_of(text, arguments, kind)
    if (origin or kind) in _COLLECTIONS:
        return _collection(text, origin or kind, arguments)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        choices = {str(member.value): member for member in kind} | {member.name: member for member in kind}
        return _one_of(text, choices, describe(kind))
    if kind is Path:
        return Path(text)
    if kind is bool:
        return _boolean(text)
    if kind in (int, float):
        return _number(text, kind)
    raise _ConversionError(
        f"{describe(kind)}, which cannot be written on a command line; have it take str, int, float, bool, a "
        "Literal or a list of these,"
    )


def _one_of(text: str, choices: dict[str, Any], expected: str) -> Any:
    if text not in choices:
        raise _ConversionError(expected)
    return choices[text]


def _one_type_of(text: str, kinds: tuple[Any, ...], union: Any) -> Any:
    if type(None) in kinds and text.strip().lower() in ("none", "null", ""):
        return None
    # str accepts everything, so it comes last whatever the order in the annotation.
    for kind in sorted((k for k in kinds if k is not type(None)), key=lambda k: k is str):
        try:
            return convert(text, kind)
        except _ConversionError:
            continue
    raise _ConversionError(describe(union))


def _collection(text: str, origin: Any, arguments: tuple[Any, ...]) -> Collection[Any]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(parts) != len(arguments):
            raise _ConversionError(f"{counted(len(arguments), 'value')} separated by commas")
        return tuple(convert(part, kind) for part, kind in zip(parts, arguments, strict=True))
    kind = arguments[0] if arguments else str
    return _COLLECTIONS[origin]([convert(part, kind) for part in parts])


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise _ConversionError(describe(bool))
    return word in _TRUE


def _number(text: str, kind: type[int] | type[float]) -> int | float:
    try:
        value = kind(text)
    except ValueError:
        raise _ConversionError(describe(kind)) from None
    if not math.isfinite(value):
        raise _ConversionError("a finite number")
    return value


def describe(kind: Any) -> str:
    """Describe a type in words."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return describe(arguments[0])
    if origin is Literal:
        return _listed([str(choice) for choice in arguments])
    if origin in (Union, types.UnionType):
        return _listed(["none" if part is type(None) else describe(part) for part in arguments])
    if (origin or kind) in _COLLECTIONS:
        return f"a list of {describe(arguments[0])} separated by commas" if arguments else "a list"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _listed([str(member.value) for member in kind])
    return _NAMED.get(kind, str(getattr(kind, "__name__", kind)))


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
