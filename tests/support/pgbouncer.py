"""A real PgBouncer in transaction mode, in front of one of the tests' PostgreSQL servers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
import sqlalchemy as sa
from postgres import PostgresServer

from txstream.core.waits import wait_until

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
MISSING = "there is no pgbouncer here; install the package of this name, without starting its service"


def prepared_statements() -> list[int]:
    """Return the values of `max_prepared_statements` to try; before 1.21 there was no such thing."""
    assert PROGRAM is not None
    told = subprocess.run([PROGRAM, "--version"], check=True, capture_output=True, text=True).stdout
    version = re.search(r"PgBouncer (\d+)\.(\d+)", told)
    assert version is not None, told
    return [0, 200] if (int(version[1]), int(version[2])) >= (1, 21) else [0]


class PgBouncer:
    """A context manager: it runs, with `size` server connections to each database, until the end."""

    def __init__(self, server: PostgresServer, *, size: int, prepared: int) -> None:
        self._user = server.user
        # Of its own, as a server's: another user must get there, and a socket's path is short.
        self.folder = folder = Path(tempfile.mkdtemp(prefix="txstream-pgbouncer-"))
        if self._user is not None:
            shutil.chown(folder, self._user)
        settings = {
            "listen_addr": "",
            "unix_socket_dir": folder,
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": size,
        }
        if prepared:
            settings["max_prepared_statements"] = prepared
        lines = [f"{name} = {value}" for name, value in settings.items()]
        databases = f"[databases]\n* = host={server.data} user=postgres\n"
        (folder / "ini").write_text("\n".join([databases, "[pgbouncer]", *lines, ""]))

    def url(self, direct: str) -> str:
        """Return the URL through this of the database that `direct` means."""
        return f"postgresql://postgres@/{sa.make_url(direct).database}?host={self.folder}&port=6432"

    def __enter__(self) -> Self:
        assert PROGRAM is not None
        command = [PROGRAM, str(self.folder / "ini")]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=self._user
            )
        assert wait_until(self._answers, 30), (self.folder / "log").read_text()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(30)
        shutil.rmtree(self.folder)

    def _answers(self) -> bool:
        try:
            psycopg.connect(host=str(self.folder), port=6432, user="postgres", dbname="postgres").close()
        except psycopg.OperationalError:
            return False
        return True
