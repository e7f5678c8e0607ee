"""`@bolt`: makes a bolt of a plain function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import GeneratorType
from typing import Any, Never, TypeAlias

import pyarrow as pa

from txstream.api.bolt_checks import idleness
from txstream.api.bolts import BasicBolt, OutputCollector, OutputFieldsDeclarer
from txstream.api.schema import parse_schema
from txstream.api.tuples import DEFAULT_STREAM, Tuple
from txstream.core.errors import TopologyError, TupleError

__tracebackhide__ = True  # errors begin in the function
_VALUES = frozenset((str, int, float))  # the usual types of a single field; they need no check

Output: TypeAlias = str | pa.Schema | Mapping[str, str | pa.Schema]


class FunctionBolt(BasicBolt):
    """A bolt made of a function by `@bolt`. Calling it calls the function."""

    def __init__(self, function: Callable[..., Any], output: Output) -> None:
        self.function = function
        self.streams: dict[str, str | pa.Schema] = (
            dict(output) if isinstance(output, Mapping) else {DEFAULT_STREAM: output}
        )
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__
        idle = idleness(function, may_yield=True)
        if idle:
            raise TopologyError(f"bolt {self.__name__!r} {idle}")
        parameters = _positional(function, self.__name__)
        self._takes_collector = len(parameters) == 2
        # With a single field the function may yield bare values; only a tuple counts as a row.
        self._bare = len(self.streams) == 1 and all(
            len(parse_schema(schema)) == 1 for schema in self.streams.values()
        )

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)

    def __repr__(self) -> str:
        return f"bolt({self.__name__})"

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        for stream, schema in self.streams.items():
            declarer.declare(schema, stream)

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if self._takes_collector:
            returned = self.function(tup, collector)
            if returned is None:
                return
        else:
            returned = self.function(tup)
        bare = self._bare
        if bare and type(returned) in _VALUES:
            collector.emit((returned,))
            return
        for values in self._rows(returned):
            collector.emit((values,) if bare and not isinstance(values, tuple) else values)

    def _rows(self, returned: Any) -> Iterable[Any]:
        if returned is None:
            return ()
        if isinstance(returned, tuple):
            returned = (returned,)
        elif isinstance(returned, (GeneratorType, list)):
            pass  # the usual case; the checks below take longer than most functions
        elif isinstance(returned, (str, bytes, Mapping)) or not isinstance(returned, Iterable):
            if not self._bare:
                raise TupleError(
                    f"bolt {self.__name__!r} returned {returned!r:.200} ({type(returned).__name__}); return "
                    f"a tuple for one row, a list of tuples for several, or yield them"
                )
            returned = (returned,)
        return returned  # type: ignore[no-any-return]


def bolt(*bare: Never, output: Output | None = None) -> Callable[[Callable[..., Any]], FunctionBolt]:
    """Make a bolt of a function: `@bolt(output="word string")` above `def split(line): ...`.

    The function gets a tuple and yields rows, or returns one row as a tuple, several as a list, or None. With
    a single output field it may give bare values. With a second parameter it also gets the collector and can
    emit with it, for example to several streams, which `output` declares as a mapping of stream to schema. It
    must give the same rows for the same tuple. Raises TopologyError, SchemaError.
    """
    if bare or output is None:
        raise TopologyError(
            '@bolt needs the output\'s fields: write @bolt(output="word string") above the function'
        )
    if not isinstance(output, (str, pa.Schema, Mapping)):
        raise TopologyError(
            f'bolt(output={output!r}): give the output\'s fields, for example @bolt(output="word string")'
        )

    def decorate(function: Callable[..., Any]) -> FunctionBolt:
        if isinstance(function, type) or not callable(function):
            raise TopologyError(f"@bolt makes bolts of functions, not of {function!r}")
        return FunctionBolt(function, output)

    return decorate


def _positional(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    if len(required) not in (1, 2) or any(parameter.kind not in positional for parameter in required):
        raise TopologyError(
            f"bolt {name!r} must take a tuple, or a tuple and a collector; it takes "
            f"({', '.join(map(str, required))})"
        )
    return required
