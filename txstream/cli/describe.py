"""`txstream describe MODULE:FACTORY`: what a topology is made of, which parts run together, and its drawing.

It needs no service and no address: it calls the factory as `run` does, and starts nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txstream.api.errors import UsageError
from txstream.cli.context import Cli
from txstream.cli.factory import load_topology
from txstream.cli.options import Factory, FactoryArguments, command

if TYPE_CHECKING:
    from collections.abc import Callable

    from txstream.api.topology import Topology


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
    draw = None if svg is None else _load_drawing(svg)
    topology = load_topology(target, parameter or [])
    document = topology.to_document()
    text = topology.describe()
    if stages:
        from txstream.cli.batch_stages import plan_batch, plan_document, plan_text

        plan = plan_batch(topology, width)
        document["plan"] = plan_document(plan)
        text = f"{text}\n\n{plan_text(plan)}"
    if svg is not None and draw is not None:
        _write(svg, draw(topology))
        cli.say(f"wrote {svg}")
    if cli.as_json:
        cli.print_json(document)
    else:
        cli.print(text)


def _load_drawing(out: Path) -> Callable[[Topology], bytes]:
    """Load what draws, before the factory is called. Raises UsageError when matplotlib is not installed."""
    if out.is_dir():
        raise UsageError(f"--svg {out} is a folder; name a file in it, for example {out / 'topology.svg'}")
    try:
        import matplotlib.figure  # noqa: F401 - separates its absence from an import error of our own
    except ImportError as error:
        raise UsageError(
            f"--svg draws with matplotlib, which cannot be imported ({error}); "
            "type pip install 'txstream[svg]'"
        ) from error
    from txstream.drawing.topology import draw_topology

    return draw_topology


def _write(out: Path, drawn: bytes) -> None:
    try:
        out.write_bytes(drawn)
    except OSError as error:
        raise UsageError(f"--svg {out} cannot be written: {error.strerror or error}") from error
