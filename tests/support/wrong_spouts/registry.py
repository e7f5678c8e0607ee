"""The wrong sources by the promise that they break."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from support.line_source import LineCoordinator, LineRange, LineSource
from txstream.api.spouts import Unavailable

Plan = Mapping[str, LineRange | Unavailable]
WRONG: dict[str, list[type[LineSource]]] = {}


def breaks(promise: str) -> Callable[[type[Any]], type[Any]]:
    """Enter a source, or the source with this coordinator or emitter, among the wrong ones."""

    def enter(kind: type[Any]) -> type[Any]:
        source: type[LineSource]
        if issubclass(kind, LineSource):
            source = kind
        else:
            attribute = "coordinator_type" if issubclass(kind, LineCoordinator) else "emitter_type"
            # The class is found by this name in that module, so that it can be unpickled in another process.
            name = f"{kind.__name__}Source"
            source = type(name, (LineSource,), {attribute: kind, "__module__": kind.__module__})
            setattr(sys.modules[kind.__module__], name, source)
        WRONG.setdefault(promise, []).append(source)
        return kind

    return enter
