"""A real Redis for tests: the system's program with its own data and a loopback port; no system service."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import redis
from mysql_servers import MissingServerError, die_with_the_tests

from txstream.embedded.ports import free_port
from txstream.embedded.process import wait_until

_START_SECONDS: Final = 30.0
PASSWORD: Final = "geheim-und-lang"


class RedisServer:
    """A server on a loopback port, with a password. What was written survives a kill.

    Raises MissingServerError if its program is not installed.
    """

    def __init__(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise MissingServerError("there is no redis-server here; type apt-get install redis-server")
        self._program = program
        self._home = Path(tempfile.mkdtemp(prefix="txstream-redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        atexit.register(self.close)
        self.start()

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, decode_responses=True)

    def start(self) -> None:
        """Start the server unless it runs; return when it answers."""
        if self._process is not None:
            return
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._program, "--bind", "127.0.0.1", "--port", str(self.port)),
                    *("--dir", str(self._home), "--requirepass", PASSWORD),
                    *("--save", "", "--appendonly", "yes", "--appendfsync", "no"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_the_tests,
            )
        if not wait_until(self._answers, _START_SECONDS):
            self.stop()
            raise RuntimeError(f"redis-server did not start:\n{(self._home / 'log').read_text()[-2000:]}")

    def _answers(self) -> bool:
        try:
            return bool(self.client().ping())
        except redis.ConnectionError:  # raised also while it loads its data
            return False

    def stop(self) -> None:
        """Kill the server if it runs, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_START_SECONDS)
            self._process = None

    def close(self) -> None:
        """Stop the server for good and remove its data."""
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)
        atexit.unregister(self.close)
