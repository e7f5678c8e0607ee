"""Options that many commands share, and the decorator that gives a command its `Cli`.

A command is a function whose first parameter is a `Cli`; the others are its own arguments and options. It
returns its exit status, None for 0.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption

from txstream.cli.context import Cli
from txstream.cli.logs import set_up_logs
from txstream.core.errors import TopologyError
from txstream.core.names import validate_topology_id
from txstream.settings import DATA_DIR, Settings, using_data_dir


def check_id(topology_id: str | None) -> str | None:
    """For `callback=`: refuse an invalid id before any service is asked about it."""
    try:
        return None if topology_id is None else validate_topology_id(topology_id)
    except TopologyError as error:
        raise typer.BadParameter(str(error)) from error


Id = Annotated[str, typer.Argument(metavar="ID", help="The topology's id.", callback=check_id)]
Factory = Annotated[str, typer.Argument(metavar="MODULE:FACTORY", help="A function that returns a topology.")]
FactoryArguments = Annotated[
    list[str] | None,
    typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="An argument of FACTORY."),
]
PyFiles = Annotated[
    list[Path] | None,
    typer.Option("--py-files", metavar="FILE", help="A .py or .zip for the executors; may be repeated."),
]
SparkConf = Annotated[
    list[str] | None, typer.Option("--spark-conf", metavar="KEY=VALUE", help="A setting of Spark.")
]

_MANNERS: dict[str, Any] = {
    "debug": (Annotated[bool, typer.Option("--debug", help="Show tracebacks.")], False),
    "quiet": (Annotated[bool, typer.Option("--quiet", "-q", help="Only errors and warnings.")], False),
    "verbose": (Annotated[bool, typer.Option("--verbose", "-v", help="More about what happens.")], False),
}


def _setting(
    kind: Any, default: Any, flag: str, metavar: str, help_text: str, minimum: float | None = None
) -> tuple[Any, Any]:
    option = typer.Option(flag, metavar=metavar, help=help_text, min=minimum, rich_help_panel="Settings")
    annotated: Any = Annotated
    return annotated[kind, option], default


_DATA_DIR = {
    "data_dir": _setting(
        Path, Path(DATA_DIR), "--data-dir", "DIR", "Embedded services, SQLite file and logs."
    )
}
_ADDRESSES = {
    "zookeeper": _setting(
        str | None,
        None,
        "--zookeeper",
        "HOSTS",
        "HOST:PORT,... with an optional chroot [env: TXSTREAM_ZOOKEEPER]",
    ),
    "kafka": _setting(
        str | None, None, "--kafka", "SERVERS", "Bootstrap servers, HOST:PORT,... [env: TXSTREAM_KAFKA]"
    ),
    "schema_registry": _setting(
        str | None,
        None,
        "--schema-registry",
        "URL",
        "Schema registry of Avro and Protobuf records [env: TXSTREAM_SCHEMA_REGISTRY]",
    ),
    "database": _setting(
        str | None,
        None,
        "--database",
        "URL",
        "SQLAlchemy URL; unset: a SQLite file in the data directory [env: TXSTREAM_DATABASE]",
    ),
    "database_file": _setting(
        str | None,
        None,
        "--database-file",
        "FILE",
        "A file with the database's URL, for one with a password [env: TXSTREAM_DATABASE_FILE]",
    ),
    "master": _setting(
        str | None, None, "--master", "URL", "Spark master; unset: local[*] [env: TXSTREAM_MASTER]"
    ),
    "connect_timeout": _setting(
        float, 10.0, "--connect-timeout", "SECONDS", "How long a connection attempt may take.", 0.1
    ),
}
_ADDRESSES |= {
    f"zookeeper_{name}": _setting(
        str | None,
        None,
        f"--zookeeper-{name.replace('_', '-')}",
        metavar,
        f"{what} [env: TXSTREAM_ZOOKEEPER_{name.upper()}]",
    )
    for name, metavar, what in (
        ("auth", "digest|sasl", "How to log in to ZooKeeper"),
        ("user", "NAME", "Who logs in to ZooKeeper"),
        ("password_file", "FILE", "A file with the password for ZooKeeper"),
        ("tls_ca", "FILE|system", "TLS to ZooKeeper, with the certificates to trust"),
        ("tls_certificate", "FILE", "Our certificate for ZooKeeper, PEM"),
        ("tls_key", "FILE", "The key of our certificate, PEM"),
    )
}
_STATE_DATABASES = {
    "state_database": _setting(
        list[str] | None,
        None,
        "--state-database",
        "URL",
        "Another database with state of it; may be given again.",
    )
}
_SEVERAL_DATABASES = {
    "database": _setting(
        list[str] | None,
        None,
        "--database",
        "URL",
        "SQLAlchemy URL, may be given again; unset: a SQLite file in the data directory "
        "[env: TXSTREAM_DATABASE]",
    )
}
_JSON: dict[str, Any] = {
    "json_output": (
        Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")],
        False,
    ),
}

Command = Callable[..., int | None]
_LOGIN = re.compile("--zookeeper-.*")
ALL_OPTIONS = "all options"
"""Asked for in the context's object, as `--help --verbose` does."""


class _Command(TyperCommand):
    """Its help shows the command's own options, and in one line those that most commands have."""

    shared: Collection[str] = ()

    def format_options(self, ctx: Any, formatter: Any) -> None:
        shared = [one for one in self.params if isinstance(one, TyperOption) and one.name in self.shared]
        if (isinstance(ctx.obj, dict) and ctx.obj.get(ALL_OPTIONS)) or not shared:
            super().format_options(ctx, formatter)
            return
        for one in shared:
            one.hidden = True
        try:
            super().format_options(ctx, formatter)
        finally:
            for one in shared:
                one.hidden = False
        flags = ", ".join(
            dict.fromkeys(_LOGIN.sub("--zookeeper-*", max(one.opts, key=len)) for one in shared)
        )
        formatter.write_paragraph()
        formatter.write_text(
            f"As most commands, it takes {flags}; `{ctx.command_path} --help -v` shows them."
        )


def command(
    app: typer.Typer,
    name: str,
    *,
    addresses: bool = True,
    data_dir: bool = True,
    json: bool = True,
    state_databases: bool = False,
    several_databases: bool = False,
) -> Callable[[Command], Command]:
    """Return a decorator that registers a command with a `Cli` and the shared options that it needs."""

    def register(function: Command) -> Command:
        shared = dict(_MANNERS)
        if json:
            shared |= _JSON
        if data_dir:
            shared |= _DATA_DIR
        if addresses:
            shared |= _ADDRESSES
        if state_databases:
            shared |= _STATE_DATABASES
        if several_databases:
            shared |= _SEVERAL_DATABASES

        def run(**values: Any) -> int | None:
            cli = _make_cli({option: values.pop(option) for option in shared})
            set_up_logs(cli)
            with using_data_dir(cli.settings.data_dir):
                return function(cli, **values)

        run.__signature__ = _signature(function, shared)  # type: ignore[attr-defined]
        run.__annotations__ = {}
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        app.command(name, cls=type("_Command", (_Command,), {"shared": frozenset(shared)}))(run)
        return function

    return register


def _signature(function: Command, shared: dict[str, Any]) -> inspect.Signature:
    """The function's own parameters, then the shared ones, with resolved annotations."""
    hints = get_type_hints(function, include_extras=True)
    own = list(inspect.signature(function).parameters.values())[1:]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(
        [parameter.replace(kind=keyword, annotation=hints[parameter.name]) for parameter in own]
        + [
            inspect.Parameter(name, keyword, default=default, annotation=annotation)
            for name, (annotation, default) in shared.items()
        ]
    )


def _make_cli(values: dict[str, Any]) -> Cli:
    addresses = [name for name in _ADDRESSES if name != "connect_timeout"]
    named: dict[str, Any] = {name: values[name] or None for name in addresses if name in values}
    others = list(values.get("state_database") or ())
    if isinstance(named.get("database"), list):
        first, *more = named["database"]
        named["database"], others = first, [*more, *others]
    named["state_databases"] = tuple(others)
    if "data_dir" in values:
        named["data_dir"] = values["data_dir"]
    if "connect_timeout" in values:
        named["connect_timeout_seconds"] = values["connect_timeout"]
    return Cli(
        Settings(**named),
        as_json=values.get("json_output", False),
        debug=values["debug"],
        quiet=values["quiet"],
        verbose=values["verbose"],
    )
