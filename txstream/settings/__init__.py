"""Where a run finds its services. The first that gives an address wins: argument, environment,
`txstream.toml`, the running embedded services."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from txstream.core.entry_points import ADDRESSES, every
from txstream.core.errors import UsageError
from txstream.core.ledger_retention import Keep
from txstream.core.wording import a
from txstream.settings.given_secrets import with_variables
from txstream.settings.zookeeper_access import ZooKeeperAccess

DATA_DIR = ".txstream"
SETTINGS_FILE = "txstream.toml"
COLD, WARM = "cold", "warm"
_SERVICES = ("zookeeper", "kafka", "database", "master", "standby", "database_file")
_ZOOKEEPER = ("auth", "user", "password_file", "tls_ca", "tls_certificate", "tls_key")
_REGISTRY = ("schema_registry", "schema_registry_ca")
_STRINGS = (*_SERVICES, *(f"zookeeper_{name}" for name in _ZOOKEEPER), *_REGISTRY)
_LISTS = ("state_databases",)
_URLS = ("database", "schema_registry")
# In no file of settings and on no command line.
_PASSWORD = "zookeeper_password"  # noqa: S105 - a name
_IN_FILES = {"database": "database_file", _PASSWORD: "zookeeper_password_file"}
_LITTLE_BYTES = 1024 * 1024
_DEADLINES = ("connect_timeout_seconds", "session_timeout_seconds", "fetch_timeout_seconds")


@dataclass(frozen=True)
class Settings:
    """Addresses and deadlines of a run.

    `zookeeper` is hosts with an optional chroot, `kafka` bootstrap servers, `database` a SQLAlchemy URL,
    `master` a Spark master. `schema_registry` is the URL, with user and
    password, of a schema registry with Confluent's interface, `schema_registry_ca` a file with the
    certificates in PEM of the authorities that it is trusted by, instead of the system's. `standby` is "cold"
    or "warm": what a driver has ready while another one leads. None means not given: look further.
    `spark_conf` is passed to a session that txstream makes, whose JVM prints into `spark_log` (unset: a file
    in `log_dir`). `py_files` are shipped to executors; `package` is the one that holds the framework, for
    executors that do not have it. `ledger_keep` says how long the ledger keeps a batch: "7d", "100000",
    "all", or the default "7d,100000" (whichever limit is reached first). `state_databases` are the URLs, with
    passwords, of further databases with state, for commands that look there.
    `database_file` is a file that holds the database's URL. `zookeeper_auth` is "digest" or "sasl", with
    `zookeeper_user` and a password, which is given or in `zookeeper_password_file`. `zookeeper_tls_ca` turns
    TLS to ZooKeeper on (`ZooKeeperAccess`). `${NAME}` in a URL is a variable of the environment, which is put
    in by `resolve`. Secrets never appear in `repr`.
    """

    zookeeper: str | None = None
    kafka: str | None = None
    database: str | None = field(default=None, repr=False)
    database_file: str | None = None
    master: str | None = None
    schema_registry: str | None = field(default=None, repr=False)
    schema_registry_ca: str | None = None
    standby: str | None = None
    data_dir: Path = Path(DATA_DIR)
    connect_timeout_seconds: float = 10.0
    session_timeout_seconds: float = 10.0
    fetch_timeout_seconds: float = 10.0
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    py_files: tuple[str, ...] = ()
    spark_log: Path | None = None
    package: str | None = None
    ledger_keep: Keep | str = field(default_factory=Keep)
    state_databases: tuple[str, ...] = field(default=(), repr=False)
    zookeeper_auth: str | None = None
    zookeeper_user: str | None = None
    zookeeper_password: str | None = field(default=None, repr=False)
    zookeeper_password_file: str | None = None
    zookeeper_tls_ca: str | None = None
    zookeeper_tls_certificate: str | None = None
    zookeeper_tls_key: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.ledger_keep, str):
            object.__setattr__(self, "ledger_keep", Keep.parse(self.ledger_keep))
        if self.standby not in (None, COLD, WARM):
            raise UsageError(
                f"standby is {self.standby!r}; it is {COLD!r} or {WARM!r} (--standby, TXSTREAM_STANDBY, or "
                f"standby in {SETTINGS_FILE})"
            )
        for name in _DEADLINES:
            value = getattr(self, name)
            if not value > 0 or not math.isfinite(value):
                raise UsageError(f"{name} is {value!r}; it must be a positive number of seconds")

    @property
    def keep(self) -> Keep:
        """`ledger_keep`, parsed."""
        return self.ledger_keep if isinstance(self.ledger_keep, Keep) else Keep.parse(self.ledger_keep)

    def resolve(self, directory: Path | None = None) -> Settings:
        """Return these settings with missing values filled in from the environment, from `txstream.toml` in
        `directory` (by default the working directory), and from services that installed packages find, such
        as embedded ones that run under `data_dir`.

        Raises UsageError for a file that cannot be read or has unknown names.
        """
        given = self.resolve_given(directory)
        found: dict[str, Any] = {name: getattr(given, name) for name in _STRINGS}
        if not (found["zookeeper"] and found["kafka"]):
            for name, value in self._found_here().items():
                found[name] = found[name] or value
        return replace(given, **found)

    def resolve_given(self, directory: Path | None = None) -> Settings:
        """Do what `resolve` does, without looking for embedded services."""
        names = (*_STRINGS, *_LISTS, _PASSWORD)
        found: dict[str, Any] = dict.fromkeys(names)
        given = {name: getattr(self, name) for name in names}
        for source in (given, _from_environment(), _from_file((directory or Path.cwd()) / SETTINGS_FILE)):
            # A file with a secret counts where it is named: before what comes further down has a say.
            for name, value in {**source, **_from_named_files(source, found)}.items():
                found[name] = found[name] or value
        for name in _URLS:
            found[name] = found[name] and with_variables(found[name], name)
        for name in _LISTS:
            found[name] = tuple(with_variables(url, name) for url in found[name] or ())
        return replace(self, **found)

    @property
    def log_dir(self) -> Path:
        """Where the logs of Spark, Kafka and ZooKeeper go."""
        return self.data_dir.resolve() / "logs"

    def _found_here(self) -> Mapping[str, str]:
        known: dict[str, str] = {}
        with using_data_dir(self.data_dir):
            for find in every(ADDRESSES, "finder of addresses"):
                known = {**find(self.data_dir), **known}
        return known

    def make_data_dir(self) -> None:
        """Make the data directory if it does not exist. Raises UsageError if it cannot be used."""
        with using_data_dir(self.data_dir):
            self.data_dir.mkdir(parents=True, exist_ok=True)

    def require_zookeeper(self) -> str:
        """Return ZooKeeper's hosts. Raises UsageError that names the ways to give them."""
        if not self.zookeeper:
            raise UsageError(_missing("ZooKeeper", "zookeeper", "127.0.0.1:2181"))
        return self.zookeeper

    def require_kafka(self) -> str:
        """Return Kafka's bootstrap servers. Raises UsageError that names the ways to give them."""
        if not self.kafka:
            raise UsageError(_missing("Kafka", "kafka", "127.0.0.1:9092"))
        return self.kafka

    def zookeeper_access(self) -> ZooKeeperAccess:
        """Return who we are to ZooKeeper. Raises UsageError for what does not go together."""
        return ZooKeeperAccess(
            self.zookeeper_auth,
            self.zookeeper_user,
            self.zookeeper_password,
            self.zookeeper_tls_ca,
            self.zookeeper_tls_certificate,
            self.zookeeper_tls_key,
        )

    def addresses(self) -> dict[str, str]:
        """Return the known addresses that a source or a bolt may need."""
        known = {
            "kafka": self.kafka,
            "schema_registry": self.schema_registry,
            "schema_registry_ca": self.schema_registry_ca,
            "database": self.database_url(),
        }
        return {name: address for name, address in known.items() if address}

    def database_url(self) -> str:
        """Return the database's URL; if unset, that of the SQLite file in the data directory."""
        return self.database or f"sqlite:///{self.default_database_file}"

    @property
    def default_database_file(self) -> Path:
        return (self.data_dir / "state.db").resolve()

    @property
    def uses_default_database(self) -> bool:
        return not self.database


def to_environment(settings: Settings) -> dict[str, str]:
    """Return the variables that give addresses and secrets to a child process, whose command line would show
    them to others."""
    values = {name: getattr(settings, name) for name in (*_STRINGS, _PASSWORD)}
    values |= {name: " ".join(getattr(settings, name)) for name in _LISTS}
    return {f"TXSTREAM_{name.upper()}": value for name, value in values.items() if value}


def is_disk_full(folder: Path) -> bool:
    return folder.is_dir() and shutil.disk_usage(folder).free < _LITTLE_BYTES


@contextlib.contextmanager
def using_data_dir(data_dir: Path) -> Iterator[None]:
    """Turn operating system errors about files below the data directory, or about its full disk, into
    UsageError. Other errors pass."""
    try:
        yield
    except OSError as error:
        folder = data_dir.absolute()
        is_full = error.errno == errno.ENOSPC
        if isinstance(error.filename, str | bytes):
            file = Path(os.fsdecode(error.filename)).absolute()
            if not (file.is_relative_to(folder) or folder.is_relative_to(file)):
                raise
        elif is_full and is_disk_full(folder):
            file = folder  # a failed write names no file
        else:
            raise
        where = f" ({file})" if file != folder else ""
        reason = "not a directory" if isinstance(error, FileExistsError) else str(error.strerror).lower()
        raise UsageError(
            f"the data directory {folder} cannot be used: {reason}{where}; "
            f"{'make room there, or ' if is_full else ''}give another one with --data-dir"
        ) from error


def _from_environment() -> Mapping[str, Any]:
    values: dict[str, Any] = {
        name: os.environ.get(f"TXSTREAM_{name.upper()}", "") for name in (*_STRINGS, *_LISTS)
    }
    values |= {name: tuple(values[name].split()) for name in _LISTS}  # a URL has no blanks
    values[_PASSWORD] = os.environ.get("TXSTREAM_ZOOKEEPER_PASSWORD", "")
    return {name: value for name, value in values.items() if value}


def _from_named_files(source: Mapping[str, Any], found: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the secrets in the files that a source names, unless they were found already."""
    return {
        name: _first_line(str(source[key]), key)
        for name, key in _IN_FILES.items()
        if source.get(key) and not source.get(name) and not found[name]
    }


def _first_line(file: str, key: str) -> str:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{key} {file} cannot be read: {str(reason).lower()}") from error
    if not lines or not lines[0].strip():
        raise UsageError(f"{key} {file} is empty; its first line is to hold the secret")
    return lines[0].strip()


def _from_file(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    unknown = sorted(set(document) - {*_STRINGS, *_LISTS})
    if unknown:
        raise UsageError(
            f"{path} has unknown settings {', '.join(unknown)}; known are {', '.join((*_STRINGS, *_LISTS))}"
        )
    for name, value in document.items():
        if name in _LISTS:
            if not isinstance(value, list) or not all(isinstance(url, str) for url in value):
                raise UsageError(f"{path}: {name} must be a list of strings, found {value!r:.100}")
            document[name] = tuple(value)
        elif not isinstance(value, str):
            raise UsageError(f"{path}: {name} must be a string, found {a(type(value).__name__)}")
    return document


def _missing(what: str, name: str, example: str) -> str:
    return (
        f"no {what} was given: start embedded services with `txstream up`, or pass --{name} {example}, set "
        f"TXSTREAM_{name.upper()}, or write {name} into {SETTINGS_FILE}"
    )
