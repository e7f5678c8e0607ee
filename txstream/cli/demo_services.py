"""The services that `demo` and `compare` use: those given, or embedded ones until the command ends."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from txstream.cli.context import Cli

if TYPE_CHECKING:
    from txstream.settings import Settings


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the command as Ctrl-C does: cleanly, with everything that it started."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def services_for(cli: Cli, given: Settings) -> Iterator[Settings]:
    """Yield the settings with the addresses of running services: those given, else embedded ones, started."""
    from txstream.embedded import EmbeddedKafka, EmbeddedZooKeeper, embedded

    console = cli.error_console()
    with contextlib.ExitStack() as stack:
        if given.zookeeper and given.kafka:
            zookeeper, kafka = given.zookeeper, given.kafka
            cli.say(f"using ZooKeeper at {zookeeper} and Kafka at {kafka}")
        elif given.zookeeper:
            zookeeper = given.zookeeper
            kafka = stack.enter_context(EmbeddedKafka(given.data_dir, console=console)).address
            cli.say(f"using ZooKeeper at {zookeeper}; started Kafka at {kafka}")
        elif given.kafka:
            kafka = given.kafka
            zookeeper = stack.enter_context(EmbeddedZooKeeper(given.data_dir)).address
            cli.say(f"using Kafka at {kafka}; started ZooKeeper at {zookeeper}")
        else:
            cli.say("starting ZooKeeper and Kafka")
            services = stack.enter_context(embedded(given.data_dir, console=console))
            zookeeper, kafka = services.zookeeper, services.kafka
            verb = "found" if services.already_running else "started"
            cli.say(f"{verb} ZooKeeper at {zookeeper} and Kafka at {kafka}")
        yield replace(given, zookeeper=zookeeper, kafka=kafka)
