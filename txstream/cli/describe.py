"""`txstream describe MODULE:FACTORY`: what a topology is made of, which parts run together, and its drawing.

It needs no service and no address: it calls the factory as `run` does, and starts nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from txstream.cli.context import Cli
from txstream.cli.factory import load_topology
from txstream.cli.options import Factory, FactoryArguments, command
from txstream.core.entry_points import VIEWS, load
from txstream.core.errors import UsageError


def register(app: typer.Typer) -> None:
    command(app, "describe", addresses=False, data_dir=False)(describe)


def describe(
    cli: Cli,
    target: Factory,
    parameter: FactoryArguments = None,
    stages: Annotated[
        bool, typer.Option("--stages", help="Show what runs together, and where tuples are exchanged.")
    ] = False,
    width: Annotated[
        int | None,
        typer.Option(
            "--width", metavar="N", help="With --stages: for a batch worth N Spark tasks; unset: the largest."
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw the graph, as an SVG file.")
    ] = None,
) -> None:
    """Show what a topology is made of, without running it."""
    if width is not None and not stages:
        raise UsageError("--width says for which batch --stages shows the stages; give --stages too")
    if svg is not None and svg.is_dir():
        raise UsageError(f"--svg {svg} is a folder; name a file in it, for example {svg / 'topology.svg'}")
    topology = load_topology(target, parameter or [])
    document = topology.to_document()
    text = topology.describe()
    if stages:
        from txstream.cli.batch_stages import plan_batch, plan_document, plan_text

        plan = plan_batch(topology, width)
        document["plan"] = plan_document(plan)
        text = f"{text}\n\n{plan_text(plan)}"
    if svg is not None:
        _write(svg, load(VIEWS, "svg", "view of topologies")(topology))
        cli.say(f"wrote {svg}")
    if cli.as_json:
        cli.print_json(document)
    else:
        cli.print(text)


def _write(out: Path, drawn: bytes) -> None:
    try:
        out.write_bytes(drawn)
    except OSError as error:
        raise UsageError(f"--svg {out} cannot be written: {error.strerror or error}") from error
