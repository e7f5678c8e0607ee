"""`txstream init NAME`: a project folder with a topology, its test and all that they need."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from txstream.cli.context import Cli
from txstream.cli.options import command


def register(app: typer.Typer) -> None:
    command(app, "init", addresses=False, data_dir=False)(init)


def init(
    cli: Cli,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The project's folder, module and topology id.")
    ],
    template: Annotated[
        str,
        typer.Option(
            metavar="counts|mirror|windows",
            help="What it does: count, mirror another table, or close windows.",
        ),
    ] = "counts",
) -> None:
    """Make a project folder with a topology and its test."""
    from txstream.plugins.local.project.new_project import make_project
    from txstream.plugins.local.project.what_to_install import what_to_install

    installs = what_to_install()
    made = make_project(Path.cwd(), name, installs, template=template)
    if cli.as_json:
        cli.print_json({"folder": str(Path(name).absolute()), "files": made})
        return
    for file in made:
        cli.print(f"{name}/{file}")
    if not installs.is_elsewhere:
        cli.say(
            f"\ntxstream is installed from a folder that you edit, which {name}/requirements.txt names: "
            f"for another machine and for the project's CI, install it from a wheel, and type this again"
        )
    cli.say(
        f"\nnow type: cd {name} && python -m pytest -q\n"
        f"{name}/README.md has the few commands from there to a first result"
    )
