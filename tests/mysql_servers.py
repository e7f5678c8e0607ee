"""A real MariaDB and a real MySQL for tests, with their own data and a loopback port; no system service.

MariaDB is the system's package. MySQL is the system's too if there is one, else the one that
`tools/get_mysql.py` has fetched.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import psutil
import pymysql
from sqlalchemy import URL

import get_mysql
from txstream.core.waits import wait_until

_START_SECONDS: Final = 60.0
_LIBC: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1
_MEMORY_BYTES: Final = 4 << 30
_ACCOUNT: Final = "root"  # the server's, not the system's

_SETTINGS: Final = (
    # Safe against all but a power failure, and much faster.
    "innodb_flush_log_at_trx_commit=2",
    "innodb_doublewrite=OFF",
    "innodb_stats_persistent=OFF",
    # Small, so that it starts in a second.
    "innodb_buffer_pool_size=64M",
    "innodb_fast_shutdown=2",
    "key_buffer_size=1M",
    "performance_schema=OFF",
    "max_connections=60",
    "skip_name_resolve",
    # Defaults that our sessions must not depend on.
    "transaction_isolation=REPEATABLE-READ",
    "autocommit=OFF",
    "character_set_server=latin1",
    "default_time_zone=+05:00",
)


class MissingServerError(Exception):
    """This kind of server cannot run here; the message says what to install."""


class MySQLFamilyServer:
    """A server on a loopback port that can be stopped, frozen and started again.

    Its data is in a temporary folder of its own. A socket's path has at most 107 characters, and under root
    the server runs as another user, from whom pytest hides its folders. Raises MissingServerError if its
    programs are not installed.
    """

    is_mariadb: ClassVar[bool]
    _settings: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        self._program = self._server()
        self._home = Path(tempfile.mkdtemp(prefix="txstream-mysql-", dir=_quick_folder()))
        self._home.chmod(0o755)
        self.data = self._home / "data"
        self.log = self._home / "server.log"
        self._user = _user()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        atexit.register(self.close)
        self.data.mkdir()
        if self._user is not None:
            shutil.chown(self._home, self._user)
            shutil.chown(self.data, self._user)
        install = self._installation()
        done = subprocess.run(
            install,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            user=self._user,
            timeout=_START_SECONDS,
            cwd="/",
        )
        if done.returncode:
            raise RuntimeError(f"{install} failed:\n{done.stdout.decode(errors='replace')[-2000:]}")
        self.start()

    def _server(self) -> list[str]:
        """The server's command, without options. Raises MissingServerError."""
        raise NotImplementedError

    def _installation(self) -> list[str]:
        """The command that fills the data folder, with its options. Raises MissingServerError."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        """The server's process id, while it runs."""
        assert self._process is not None
        return self._process.pid

    def url(self, database: str = "mysql", *, user: str = _ACCOUNT, port: int | None = None) -> str:
        """Return the SQLAlchemy URL of one of its databases."""
        # Otherwise PyMySQL reads all the system's certificates for each connection, to encrypt it if it can.
        query = {"ssl_disabled": "true"}
        url = URL.create("mysql+pymysql", user, None, "127.0.0.1", port or self.port, database, query)
        return url.render_as_string(hide_password=False)

    def create_database(self, name: str) -> str:
        """Create an empty database and return its URL."""
        self.execute(f"CREATE DATABASE `{name}`")
        return self.url(name)

    def create_account(self, name: str, rights: str, password: str = "") -> None:
        """Create or replace an account for local clients. `rights` is what GRANT takes before TO."""
        account = f"`{name}`@`127.0.0.1`"
        self.execute(
            f"DROP USER IF EXISTS {account}",
            f"CREATE USER {account} IDENTIFIED BY '{password}'",
            f"GRANT {rights} TO {account}",
        )

    def connect(self, **options: Any) -> pymysql.Connection[Any]:
        """Open a plain connection as an administrator."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=_ACCOUNT,
            autocommit=True,
            connect_timeout=5,
            ssl_disabled=True,
            **options,
        )

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Execute statements as an administrator and return the rows of the last one."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def start(self) -> None:
        """Start the server, also after `stop`, unless it runs; return when it answers."""
        if self._process is not None:
            return
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *self._program,
                    "--no-defaults",
                    f"--datadir={self.data}",
                    f"--socket={self._home / 'socket'}",
                    f"--pid-file={self._home / 'pid'}",
                    "--bind-address=127.0.0.1",
                    f"--port={self.port}",
                    *(f"--{setting}" for setting in (*_SETTINGS, *self._settings)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                user=self._user,
                cwd="/",
                preexec_fn=die_with_the_tests,
            )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.execute("SELECT 1")
                return
            except pymysql.err.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    last = self.log.read_text(encoding="utf-8", errors="replace")[-2000:]
                    self.stop()
                    raise RuntimeError(f"{self._program[-1]} did not start:\n{last}") from error
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill the server if it runs, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_START_SECONDS)
            self._process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the server: it keeps its connections open and does nothing.

        The signal stops one of its threads, and the others a little later. Until all of them have stopped, a
        statement may still be answered.
        """
        process = psutil.Process(self.pid)
        process.send_signal(signal.SIGSTOP)
        try:
            assert wait_until(lambda: _all_stopped(process.pid), 10)
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop the server for good and remove its data."""
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)
        atexit.unregister(self.close)


class MariaDBServer(MySQLFamilyServer):
    """The system's MariaDB."""

    is_mariadb = True
    _settings = (
        "sql_mode=ANSI_QUOTES",
        "skip_log_bin",
        "innodb_log_file_size=16M",
        "aria_pagecache_buffer_size=8M",
    )

    def _server(self) -> list[str]:
        return [_mariadb_program("mariadbd", "mysqld")]

    def _installation(self) -> list[str]:
        install = _mariadb_program("mariadb-install-db", "mysql_install_db")
        return [
            install,
            "--no-defaults",
            f"--datadir={self.data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
            "--innodb-log-file-size=16M",
        ]


class MySQLServer(MySQLFamilyServer):
    """The system's MySQL, or the fetched one."""

    is_mariadb = False
    _settings = (
        "sql_mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT",
        "sql_require_primary_key=ON",
        # The binary log (`log_bin`) stays on, as it is by default.
        "sync_binlog=0",
        "innodb_redo_log_capacity=32M",
        "secure_file_priv=NULL",
        "mysqlx=OFF",
    )

    def _server(self) -> list[str]:
        found = get_mysql.server()
        if found is None:
            raise MissingServerError(f"{get_mysql.NO_MYSQL}; type python tools/get_mysql.py")
        return found

    def _installation(self) -> list[str]:
        # MySQL's own root account is for the name `localhost`, and the server looks up no names.
        account = self._home / "account.sql"
        account.write_text(
            f"CREATE USER {_ACCOUNT}@127.0.0.1;\n"
            f"GRANT ALL ON *.* TO {_ACCOUNT}@127.0.0.1 WITH GRANT OPTION;\n"
        )
        return [
            *self._program,
            "--no-defaults",
            "--initialize-insecure",
            f"--init-file={account}",
            f"--datadir={self.data}",
            "--innodb-redo-log-capacity=32M",
        ]


def _mariadb_program(*names: str) -> str:
    for name in names:
        found = _found(name)
        if found is not None:
            return found
    raise MissingServerError(
        f"there is no {names[0]} here; type apt-get install mariadb-server-core mariadb-client-core"
    )


def _found(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def _all_stopped(pid: int) -> bool:
    states = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread has just ended
            states.append((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return set(states) <= {"T"}


def die_with_the_tests() -> None:
    """Called in the new process, so that tests that are killed leave no server behind."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _quick_folder() -> str | None:
    """A folder in memory, if there is enough: creating a table waits for the disk, whatever the settings."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > _MEMORY_BYTES:
        return str(memory)
    return None


def _user() -> str | None:
    """The user to run the server as, None for the current one. The server refuses to run as root."""
    if os.geteuid() != 0:
        return None
    # The user `mysql` comes with the system service, which the tests do not need.
    return next(name for name in ("mysql", "nobody") if name in {user.pw_name for user in pwd.getpwall()})


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
