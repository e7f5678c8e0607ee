"""Remembers which code a topology was last run with from this folder, as the default for later commands."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstream.cli.beside import beside
from txstream.cli.context import Cli
from txstream.cli.factory import load_topology, shipped_module, user_code_prints_to_stderr
from txstream.core.errors import UsageError
from txstream.inspect.databases import refuse_tracked
from txstream.settings import Settings

if TYPE_CHECKING:
    from txstream.api.topology import Topology

Target = Annotated[
    str | None,
    typer.Option(
        "--topology", metavar="MODULE:FACTORY", help="The topology's code; unset: as it was last run here."
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="With --topology: an argument of FACTORY."),
]


def remember_code(
    settings: Settings,
    topology_id: str,
    target: str,
    parameters: Sequence[str],
    *,
    is_beside: bool = False,
    components: Mapping[str, str] | None = None,
) -> None:
    """Store what a run was given, and the `fingerprints` of what runs. Only its user can read it, since a
    parameter may be a password."""
    file = _file(settings, topology_id)
    with contextlib.suppress(OSError):  # only for later commands: the run itself does not need it
        file.parent.mkdir(exist_ok=True)
        file.touch(mode=0o600)
        noted: dict[str, Any] = {"target": target, "parameters": list(parameters)}
        noted |= {"beside": True} if is_beside else {}
        noted |= {} if components is None else {"components": components}
        file.write_text(json.dumps(noted), encoding="utf-8")


def is_code_known(settings: Settings, topology_id: str) -> bool:
    """Whether a run from this folder has noted its code."""
    return _file(settings, topology_id).is_file()


def find_code(
    cli: Cli, topology_id: str, target: str | None, parameters: Sequence[str] | None
) -> tuple[Topology, str]:
    """Return the topology under this id and its MODULE:FACTORY: the given one, or that of its last run here.

    Raises UsageError when neither is known, and whatever `load_topology` raises.
    """
    if target is None:
        if parameters:
            raise UsageError("-p is for the factory of --topology MODULE:FACTORY; give that, too")
        noted = noted_code(cli.settings, topology_id)
        if noted is None:
            refuse_tracked(cli.resolve(), topology_id)
            raise UsageError(
                f"with which code? topology {topology_id!r} was not run from this folder; give its code by "
                f"--topology MODULE:FACTORY, with -p as for `txstream run`"
            )
        target, parameters = noted
        cli.say(f"code: {target}, as it was last run here (--topology for other code)")
    return under_id(cli.settings, load_topology(target, parameters or []), topology_id), target


def under_id(settings: Settings, topology: Topology, topology_id: str) -> Topology:
    """Return the topology under an id, over tables of its own if it was last run here with --as."""
    noted = _noted(settings, topology_id)
    return (beside if noted.get("beside") else type(topology).with_id)(topology, topology_id)


def noted_code(settings: Settings, topology_id: str) -> tuple[str, list[str]] | None:
    """Return what the last run from this folder was given: MODULE:FACTORY and its parameters."""
    try:
        noted = _noted(settings, topology_id)
        return str(noted["target"]), [str(one) for one in noted["parameters"]]
    except (KeyError, TypeError):
        return None


def noted_components(settings: Settings, topology_id: str) -> dict[str, str] | None:
    """Return the fingerprints of the components that were last run from this folder, if they were noted."""
    found = _noted(settings, topology_id).get("components")
    return found if isinstance(found, dict) else None


def _noted(settings: Settings, topology_id: str) -> dict[str, Any]:
    try:
        noted = json.loads(_file(settings, topology_id).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def _file(settings: Settings, topology_id: str) -> Path:
    return settings.data_dir / "code" / f"{topology_id}.json"


@contextlib.contextmanager
def running(cli: Cli, target: str) -> Iterator[tuple[Settings, bool]]:
    """Yield settings for batches that are run again, and whether they run on Spark: they do if --master is
    given."""
    on_spark = cli.settings.master is not None
    settings = cli.resolve()
    with shipped_module(target) as modules, user_code_prints_to_stderr():
        yield replace(settings, py_files=modules), on_spark
