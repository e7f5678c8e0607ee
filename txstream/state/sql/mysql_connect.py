"""Connecting to MySQL and MariaDB: the options of a URL, and the errors when connecting fails.

PyMySQL misreads some options in the form in which SQLAlchemy passes them: it takes any text as true, a
password as Latin-1, and ignores certificates beside the options that verify them. Here each option means what
it says.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

from sqlalchemy import URL

from txstream.api.errors import ServiceUnavailableError, UsageError

OLDEST_MYSQL: Final = (8, 0, 19)
OLDEST_MARIADB: Final = (10, 3, 3)
"""The oldest versions that accept VALUES as a table, as each upsert needs it (`mysql_statements`)."""

_YES_OR_NO: Final = ("ssl_disabled", "ssl_verify_cert", "ssl_verify_identity")
_WORDS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_PACKAGE: Final = "cryptography"


def is_mariadb(version: str) -> bool:
    """Is it MariaDB, by the version in the server's handshake: 8.0.36 or 5.5.5-10.11.6-MariaDB?"""
    return "mariadb" in version.lower()


def refuse_old_server(version: str, where: str) -> None:
    """Raise ServiceUnavailableError for a server that is too old for the statements of a commit."""
    mariadb = is_mariadb(version)
    # MariaDB may put another version before its own, for clients that know no version as high.
    found = re.search(
        r"(\d+)\.(\d+)\.(\d+)(?=-mariadb)" if mariadb else r"^(\d+)\.(\d+)\.(\d+)", version, re.I
    )
    oldest = OLDEST_MARIADB if mariadb else OLDEST_MYSQL
    if found is not None and tuple(map(int, found.groups())) < oldest:
        name = "MariaDB" if mariadb else "MySQL"
        raise ServiceUnavailableError(
            f"database {where}: the server is {name} {version}, and txstream needs {name} "
            f"{'.'.join(map(str, oldest))} or newer"
        )


def place(url: URL) -> str:
    """Return the name of a database for messages, without a password."""
    return f"{url.host or url.query.get('unix_socket') or 'localhost'}/{url.database}"


def connect(driver: Any, url: URL, options: dict[str, Any]) -> Any:
    """Return a PyMySQL connection, opened with the options that SQLAlchemy has made of the URL.

    Raises UsageError for an option that does not exist or cannot be used, ServiceUnavailableError for what is
    missing on this machine or a server that is too old, and PyMySQL's own errors for errors of the server.
    """
    where = place(url)
    known = inspect.signature(driver.connections.Connection.__init__).parameters
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise UsageError(
            f"the URL of database {where} has the option {', '.join(unknown)}, which PyMySQL does not know; "
            f"remove it"
        )
    given: dict[str, Any] = {
        name: _truth(name, value, where) if name in _YES_OR_NO else value for name, value in options.items()
    }
    if isinstance(given.get("password"), str):
        given["password"] = given["password"].encode()  # in UTF-8, as the server's own clients send it
    files = _put_together(given, where)
    try:
        connection = driver.connect(**given)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise UsageError(f"the URL of database {where} has an option that cannot be used: {error}") from error
    except OSError as error:  # only files raise it: PyMySQL has its own errors for the network
        raise ServiceUnavailableError(
            f"database {where}: a certificate or key of its URL cannot be read on this machine "
            f"({', '.join(files)}): {error}"
        ) from error
    except RuntimeError as error:
        if _PACKAGE not in str(error):
            raise
        raise ServiceUnavailableError(
            f"database {where}: sending a password to it without TLS needs the package {_PACKAGE}, which is "
            f"not installed; type pip install 'txstream[mysql]'"
        ) from error
    try:
        refuse_old_server(connection.get_server_info(), where)
    except ServiceUnavailableError:
        connection.close()
        raise
    return connection


def _truth(name: str, value: Any, where: str) -> bool:
    found = _WORDS.get(str(value).lower())
    if found is None:
        raise UsageError(f"the URL of database {where} has {name}={value}; write true or false")
    return found


def _put_together(options: dict[str, Any], where: str) -> list[str]:
    """Put all TLS options into PyMySQL's one option `ssl`. Returns the files and folders that it names."""
    tls = dict(options.get("ssl") or {})
    if "ssl_key_password" in options:
        tls["password"] = options.pop("ssl_key_password")
    if "ssl_verify_cert" in options or "ssl_verify_identity" in options:
        identity = options.pop("ssl_verify_identity", False)
        if identity and not {"ca", "capath"} & set(tls):
            raise UsageError(  # PyMySQL would not check the name then
                f"the URL of database {where} has ssl_verify_identity without ssl_ca; name the file of the "
                f"certificates to trust as ssl_ca too"
            )
        tls["verify_mode"] = options.pop("ssl_verify_cert", False) or identity
        tls.setdefault("check_hostname", identity)
    if tls:
        options["ssl"] = tls
    return [f"ssl_{name}={tls[name]}" for name in ("ca", "capath", "cert", "key") if name in tls]
