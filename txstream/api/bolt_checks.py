"""Checks of a bolt's class before it runs.

A method that is a generator or a coroutine does nothing when it is called, and a misnamed method is never
called. Either way a batch would commit without what the bolt should have emitted.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import pickle
import warnings
from collections.abc import Iterator
from types import CodeType
from typing import Any

from txstream.api.bolts import BasicBolt, BatchBolt, Bolt, DataFrameBolt, overrides
from txstream.api.tracked import RichBolt, Spout
from txstream.core.errors import TopologyError
from txstream.core.wording import a

_KINDS = (BasicBolt, BatchBolt, DataFrameBolt, RichBolt)
# What other frameworks call these methods.
_ELSEWHERE = {
    "process": "execute",
    "finish": "finish_batch",
    "cleanup": "close_worker",
    "nextTuple": "next_tuple",
}


class TopologyWarning(UserWarning):
    """A topology was built, but is probably not what was meant."""


def check_bolt(component: str, bolt: object) -> None:
    """Raise TopologyError if this is not a bolt."""
    if not isinstance(bolt, _KINDS):
        hint = " (pass an instance, not the class)" if isinstance(bolt, type) else ""
        raise TopologyError(
            f"component {component!r}: {bolt!r} is not a BasicBolt, BatchBolt, RichBolt or "
            f"DataFrameBolt{hint}"
        )


def check_methods(component: str, bolt: Bolt | Spout) -> None:
    """Raise TopologyError for a method that does nothing when called, or a BasicBolt that overrides none."""
    kind = _kind(bolt)
    for name in _methods(kind):
        idle = idleness(getattr(bolt, name))
        if idle:
            raise TopologyError(f"component {component!r}: {type(bolt).__name__}.{name} {idle}")
    either = (BasicBolt.execute, BasicBolt.execute_batch)
    if isinstance(bolt, BasicBolt) and not any(overrides(bolt, method) for method in either):
        raise TopologyError(
            f"component {component!r}: {type(bolt).__name__} has neither execute nor execute_batch; "
            f"override one of them"
        )


SHIPPING_REMEDY = "keep connections, locks and open files out of its constructor and open them in prepare()"

# What no kind of pickling takes. Of other objects only the engine's own pickling can show it.
_STAYS_HERE = ("_thread.lock", "_thread.RLock", "_queue.SimpleQueue", "socket", "generator")


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: object) -> int:
        return 0


def check_shipping(component: str, bolt: Bolt) -> None:
    """Raise TopologyError for a bolt that holds what cannot go to executors, such as a lock."""
    try:
        pickle.Pickler(_Nowhere(), protocol=5).dump(bolt)
    except TypeError as error:
        if any(f"cannot pickle {kind!r} object" in str(error) for kind in _STAYS_HERE):
            raise TopologyError(
                f"component {component!r} cannot be shipped to executors: {error}; {SHIPPING_REMEDY}"
            ) from error
    except Exception:  # noqa: BLE001 - this pickling takes less than the engine's, which judges what is left
        return


def idleness(function: Any, *, may_yield: bool = False) -> str | None:
    """Return why calling this function does nothing, with the remedy, or None if it does run. It cannot see
    behind a decorator; for that, look at what the call returns."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        else:
            break
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "is async, and nobody awaits it; write it with def, and call what is async by asyncio.run"
    if inspect.isgeneratorfunction(function) and not may_yield:
        return (
            "is a generator, so what it yields would be lost; emit tuples by the collector instead (only a "
            "function under @bolt may yield them)"
        )
    return None


def warn_of_uncalled(component: str, bolt: Bolt | Spout, stacklevel: int) -> None:
    """Warn of a method that is almost named as a contract method and that the class itself does not use."""
    kind = _kind(bolt)
    contract = _methods(kind)
    used = {name for owner in type(bolt).__mro__ for member in vars(owner).values() for name in _uses(member)}
    for name in sorted(_methods(type(bolt)) - contract - used):
        having = [other.__name__ for other in _KINDS[:3] if name in _methods(other)]
        meant = _ELSEWHERE.get(name.lower()) or _nearest(name, contract)
        if having:
            why = f", because it is {a(kind.__name__)}; {a(' or '.join(having))} has such a method"
        elif meant in contract:
            why = f"; did you mean {meant}?"
        else:
            continue
        warnings.warn(
            f"component {component!r}: {type(bolt).__name__}.{name} is never called{why}",
            TopologyWarning,
            stacklevel=stacklevel + 1,
        )


def _kind(instance: Bolt | Spout) -> type[Bolt | Spout]:
    return next(kind for kind in (*_KINDS, Spout) if isinstance(instance, kind))


def _methods(kind: type[Bolt | Spout]) -> set[str]:
    """Return the names of a class's public methods."""
    return {name for name in dir(kind) if inspect.isfunction(getattr(kind, name)) and name[0] != "_"}


def _nearest(name: str, contract: set[str]) -> str | None:
    plain = {other.replace("_", ""): other for other in contract}
    found = difflib.get_close_matches(name.lower().replace("_", ""), plain, 1, cutoff=0.8)
    return plain[found[0]] if found else None


def _uses(member: Any) -> Iterator[str]:
    """Yield the names that a function's code uses, and those that functions inside it use."""
    code = member if isinstance(member, CodeType) else getattr(member, "__code__", None)
    if code is not None:
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _uses(constant)
