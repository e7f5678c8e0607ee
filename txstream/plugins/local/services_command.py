"""`txstream up` and `down`: an embedded ZooKeeper and Kafka for later commands."""

from __future__ import annotations

from typing import Annotated

import typer

from txstream.cli.context import Cli
from txstream.cli.options import command
from txstream.plugins.local import embedded


def register(app: typer.Typer) -> None:
    command(app, "up", addresses=False)(up)
    command(app, "down", addresses=False)(down)


def up(
    cli: Cli,
    brokers: Annotated[
        int, typer.Option("--brokers", metavar="N", help="How many Kafka brokers.", min=1)
    ] = 1,
    zookeeper_port: Annotated[
        int | None,
        typer.Option("--zookeeper-port", metavar="PORT", help="By default a free one.", min=1, max=65535),
    ] = None,
    kafka_port: Annotated[
        int | None,
        typer.Option(
            "--kafka-port",
            metavar="PORT",
            help="The first broker's; by default a free one.",
            min=1,
            max=65535,
        ),
    ] = None,
) -> None:
    """Start an embedded ZooKeeper and Kafka on this machine. `txstream down` stops them."""
    services = embedded.up(
        cli.settings.data_dir,
        brokers=brokers,
        zookeeper_port=zookeeper_port,
        kafka_port=kafka_port,
        console=cli.error_console(),
    )
    if cli.as_json:
        cli.print_json(
            {
                "zookeeper": services.zookeeper,
                "kafka": services.kafka,
                "data_dir": str(services.data_dir),
                "zookeeper_pid": services.zookeeper_pid,
                "kafka_pids": list(services.kafka_pids),
                "logs": [str(path) for path in services.logs],
                "already_running": services.already_running,
            }
        )
    else:
        cli.say("`txstream ui` shows in a browser what runs on them")


def down(cli: Cli) -> None:
    """Stop what `txstream up` started here, and nothing else."""
    stopped = embedded.down(cli.settings.data_dir, console=cli.error_console())
    if cli.as_json:
        cli.print_json([{"name": s.name, "address": s.address, "pid": s.pid} for s in stopped])
