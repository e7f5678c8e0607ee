"""What installed packages add to txstream. What the kernel does not know comes in as a stranger's would: the
optional rooms of this wheel and any other package by one door.

Each kind of addition has a group of entry points (docs/extensions.md). Looking there loads nothing but what
is asked for.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from txstream.core.errors import ServiceUnavailableError, UsageError

BELONGINGS: Final = "txstream.belongings"
"""Of what else a topology has in a database: an object is called with the `StateBackend`, the topology's id
and whether to drop it, and returns the names of its tables."""
COMMANDS: Final = "txstream.commands"
"""Of the command line: an object is called with typer's app, `register(app)`, when a command line begins."""
STATE_BACKENDS: Final = "txstream.state_backends"
"""Of stores: a name is the scheme of a URL, its object a `BackendFactory`."""
SQL_DIALECTS: Final = "txstream.sql_dialects"
"""Of SQL databases: a name is the scheme of a URL without its driver, its object a subclass of
`StateDialect`."""
TIERS: Final = "txstream.tiers"
"""Of what runs topologies: a name is a topology's `tier`, its object makes the `Tier`."""
ADDRESSES: Final = "txstream.addresses"
"""Of where a run finds services that nobody named: an object is called with the data directory (a Path) and
returns addresses by their names in `Settings`, such as `zookeeper` and `kafka`."""
COMPANIONS: Final = "txstream.companions"
"""Of what runs beside the batches of every run: an object is called with a `Leading` once the run leads, and
returns a `Companion`, or None if it has nothing to do."""
COMPUTED_BOLTS: Final = "txstream.computed_bolts"
"""Of bolts that Spark computes itself: the object `dataframe` makes a `ComputedBolts`."""
EXPLAINERS: Final = "txstream.explainers"
"""Of what is found out once a batch's error has ended a run: an object is called with the run's `BatchTier`,
whose runner is still open, and the error, to which it may add."""
EXPORTERS: Final = "txstream.exporters"
"""Of `txstream run --metrics`, whose exporter is `metrics`: an object is called with topology, typed address
and number of partitions to show, and returns a context manager of a `Watcher` and the numbers' URL."""
PAGES: Final = "txstream.pages"
"""Of what else the page shows of a topology, and buttons there: an object is called with the settings, a
ZooKeeper and the topology's id, and returns `Page`s (`txstream.inspect.pages`)."""
REMARKS: Final = "txstream.remarks"
"""Of what else `status` and the page say of a topology: an object is called with ZooKeeper and the
topology's `Snapshot`, and returns `Remark`s (`txstream.inspect.standing`)."""
SMALL_BATCHES: Final = "txstream.small_batches"
"""Of what processes small batches without a Spark job: the object `spark` makes a `SmallBatches`."""
SETTLERS: Final = "txstream.settlers"
"""Of what finishes an operator's change that a crash broke off: an object is called with an `Unsettled` at
every start of batches, once all fences are raised and before it is read where the topology is."""
TASKS: Final = "txstream.tasks"
"""Of what runs topologies, on workers: a name is a topology's `tier`, its object a `TaskTier`."""
VIEWS: Final = "txstream.views"
"""Of what shows a topology: `words`, `document`, `topology` and `svg` are called with one and return a text,
JSON values, HTML and an SVG file's bytes. `batches` is called with numbers of batches, for a figure."""
VALUE_ENCODERS: Final = "txstream.value_encoders"
"""Of what writes values that are sent: a name is a `value_format`, its object makes the `ValueEncoder`."""
VALUE_FORMATS: Final = "txstream.value_formats"
"""Of what reads values and keys: a name is a source's `value_format`, its object makes the `ValueFormat`."""
WATCHERS: Final = "txstream.watchers"
"""Of what is told of every run's batches: an object is called with the topology's id, before the run starts,
and returns a `Watcher`, or None if it has nothing to do."""


def names(group: str) -> list[str]:
    """Return the names that installed packages have in a group, sorted, each once."""
    return sorted({point.name for point in _points(group)})


def every(group: str, what: str) -> list[Any]:
    """Return the object of each name in a group; errors call one of them `what`. Raises what `load` does."""
    return [load(group, name, f"{what} {name!r}") for name in names(group)]


def load(group: str, name: str, what: str) -> Any:
    """Return the object of this name, or None if no package has one. `what` is its name in errors.

    Raises UsageError if several packages have one, and ServiceUnavailableError if it cannot be loaded, with
    what to install.
    """
    points = [point for point in _points(group) if point.name == name]
    if len(points) > 1:
        packages = ", ".join(sorted(_package(point) for point in points))
        raise UsageError(f"{packages} each have a {what}; uninstall all but one")
    for point in points:
        try:
            return point.load()
        except (ImportError, AttributeError) as error:
            place = f"{point.module}:{point.attr}"
            extras = f": pip install '{_package(point)}[{','.join(point.extras)}]'" if point.extras else ""
            raise ServiceUnavailableError(
                f"the {what} of {_package(point)} cannot be loaded from {place!r} ({error}); "
                f"install what it needs{extras}"
            ) from error
    return None


def _points(group: str) -> list[EntryPoint]:
    return list(_installed(tuple(sys.path)).select(group=group))


@cache
def _installed(_path: tuple[str, ...]) -> Any:
    """Return what the folders of `sys.path` have. Without the cache, 20 lookups of a command read every
    installed package 20 times: a tenth of a second."""
    return entry_points()


def _package(point: EntryPoint) -> str:
    return "a package" if point.dist is None else str(point.dist.name)
