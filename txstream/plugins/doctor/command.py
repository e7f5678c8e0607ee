"""`txstream doctor [MODULE:FACTORY]`: what is wrong with the machine and the services, and what mends it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txstream.cli.context import Cli
from txstream.cli.factory import imported_by, load_topology, shipped_module, user_code_prints_to_stderr
from txstream.cli.options import FactoryArguments, PyFiles, SparkConf, command
from txstream.cli.parameters import spark_settings
from txstream.cli.tables import escaped
from txstream.core.wording import counted
from txstream.engine.spark.log import writable_spark_log

if TYPE_CHECKING:
    from txstream.plugins.doctor.checks import Check
    from txstream.settings import Settings


def register(app: typer.Typer) -> None:
    command(app, "doctor", state_databases=True)(doctor)


def doctor(
    cli: Cli,
    target: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:FACTORY]", help="A function that returns a topology."),
    ] = None,
    parameter: FactoryArguments = None,
    py_files: PyFiles = None,
    spark_conf: SparkConf = None,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Start no Spark and ask no executor.")] = False,
) -> int:
    """Look at all that a run needs, and say what mends it.

    Java, packages, ports, services, clocks, Spark and its executors. Exit status 1 if something is wrong.
    Nothing that stays is written.
    """
    from txstream.cli.packaging import holds_framework
    from txstream.cli.run_options import existing_files

    conf = spark_settings(spark_conf or [])
    files = existing_files(py_files or [])
    topology = None if target is None else load_topology(target, parameter or [])
    settings = cli.resolve()
    settings = replace(
        settings,
        spark_conf=conf,
        package=next((file for file in files if holds_framework(Path(file))), None),
        spark_log=None if no_spark else writable_spark_log(cli.log_dir, "doctor"),
    )
    from txstream.plugins.doctor.examination import Examination

    with user_code_prints_to_stderr(), _shipped(settings, files, target) as shipped:
        imported = [] if target is None else sorted(imported_by(target))
        checks = Examination(shipped, topology, imported, conf, with_spark=not no_spark).ask()
    _show(cli, checks)
    return 0 if all(check.ok for check in checks) else 1


@contextlib.contextmanager
def _shipped(settings: Settings, files: Sequence[str], target: str | None) -> Iterator[Settings]:
    """Yield the settings with the files for executors, as in a run."""
    if target is None:
        yield replace(settings, py_files=tuple(files))
        return
    with shipped_module(target) as modules:
        yield replace(settings, py_files=(*files, *modules))


def _show(cli: Cli, checks: Sequence[Check]) -> None:
    if cli.as_json:
        cli.print_json({"checks": [check.to_document() for check in checks]})
        return
    for check in checks:
        cli.print(f"{'ok' if check.ok else 'WRONG':<6} {escaped(check.name)}: {escaped(check.message)}")
        if check.remedy:
            cli.print(f"       to mend it: {escaped(check.remedy)}")
    wrong = sum(not check.ok for check in checks)
    cli.print(f"{counted(wrong, 'thing')} to mend" if wrong else "all is well, as far as was looked")
