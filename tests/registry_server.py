"""A real schema registry for tests: Apicurio Registry with its own data and a loopback port."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Final

from mysql_servers import MissingServerError
from support.kafka_topics import wait_until

import get_registry
from txstream.cli.java import find_java
from txstream.plugins.local.embedded.java import SMALL_JVM
from txstream.plugins.local.embedded.ports import HOST, free_port
from txstream.plugins.local.embedded.process import ServerProcess

_START_SECONDS: Final = 120.0


class RegistryServer:
    """A registry whose schemas survive a kill. Raises MissingServerError if it was not fetched."""

    def __init__(self) -> None:
        jar = get_registry.program(get_registry.folder())
        if jar is None:
            raise MissingServerError(f"{get_registry.NO_REGISTRY}; type python tools/get_registry.py")
        self._jar = jar
        self._home = Path(tempfile.mkdtemp(prefix="txstream-registry-"))
        self._port = free_port()
        self._process = ServerProcess("the schema registry", self._home / "log")
        self.start()

    @property
    def url(self) -> str:
        """The address of its interface that is Confluent's."""
        return f"http://{HOST}:{self._port}/apis/ccompat/v7"

    def start(self) -> None:
        """Start the registry unless it runs, thaw it if it is frozen; return when it answers."""
        if self._process.alive():
            self._signal(signal.SIGCONT)
        else:
            options = {
                "quarkus.http.host": HOST,
                "quarkus.http.port": self._port,
                "quarkus.http.access-log.enabled": "false",
                # By default H2 writes what it has committed half a second later: a kill would lose a schema.
                "apicurio.datasource.url": f"jdbc:h2:file:{self._home / 'schemas'};DB_CLOSE_ON_EXIT=FALSE;"
                "WRITE_DELAY=0",
            }
            given = [f"-D{name}={value}" for name, value in options.items()]
            command = [str(find_java().path), *SMALL_JVM, "-Xmx256m", *given, "-jar", str(self._jar)]
            self._process.start(command, cwd=self._home)
        self._process.wait_ready(self._answers, time.monotonic() + _START_SECONDS)

    def kill(self) -> None:
        """SIGKILL it, as a crash would."""
        self._process.kill()

    def lose_everything(self) -> None:
        """Start again without its schemas: the next one gets the first id."""
        self.kill()
        wait_until(lambda: not self._process.alive(), "the registry has ended")
        for file in self._home.glob("schemas*"):
            file.unlink()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP it: connections are made, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """Stop it for good and remove its data."""
        self._process.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process.identity is not None
        assert self._process.identity.signal_group(number)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/schemas/types", timeout=2.0) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except OSError:
            return False
