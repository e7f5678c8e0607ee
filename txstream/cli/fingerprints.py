"""What each component of a topology does, as a short text: another text where its code has changed.

It is of the source text of the component's class and of what that uses of the same package, and of what the
instance holds, but for its slots and tasks. Code that cannot be read counts by its name.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import reprlib
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txstream.api.topology import Component, Topology

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_OURS = "txstream."
_short = reprlib.Repr()
_short.maxother = _short.maxstring = 2_000
_short.maxdict = _short.maxlist = _short.maxtuple = 100


def fingerprints(topology: Topology) -> dict[str, str]:
    """Return the fingerprint of each component, by its id."""
    return {one.id: _of(one) for one in topology.components}


def _of(component: Component) -> str:
    kind = type(component.instance)
    told = [f"{kind.__module__}.{kind.__qualname__}", *sorted(map(str, component.inputs))]
    held = sorted(vars(component.instance).items())
    told += [f"{name}={_ADDRESS.sub('', _short.repr(value))}" for name, value in held]
    told += sorted(_sources(kind, set()))
    return hashlib.blake2b("\n".join(told).encode(), digest_size=8).hexdigest()


def _sources(what: Any, seen: set[int]) -> Iterator[str]:
    """Yield the source texts of a class or function, and of what it uses of its own package. What is ours is
    left out."""
    module = getattr(what, "__module__", None) or ""
    if id(what) in seen or module.startswith(_OURS):
        return
    seen.add(id(what))
    try:
        yield inspect.getsource(what)
    except (OSError, TypeError):
        yield f"{module}.{getattr(what, '__qualname__', what)}"
    functions = [what] if isinstance(what, types.FunctionType) else []
    if isinstance(what, type):
        functions += [one for one in vars(what).values() if isinstance(one, types.FunctionType)]
        for base in what.__bases__:
            yield from _sources(base, seen)
    package = module.partition(".")[0]
    for function in functions:
        for name in function.__code__.co_names:
            used = function.__globals__.get(name)
            if isinstance(used, (type, types.FunctionType)):
                if (used.__module__ or "").partition(".")[0] == package:
                    yield from _sources(used, seen)
            elif isinstance(used, (str, int, float, frozenset, tuple)):
                yield f"{name}={used!r}"
