"""Connecting to MySQL and MariaDB: the options of a URL, and what is said when there is no connection.

PyMySQL takes some options as SQLAlchemy gives them for something else: any text as true, a password as
Latin-1, and certificates not at all beside the options that verify them. Here each means what it says.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

from sqlalchemy import URL

from txstream.api.errors import ServiceUnavailableError, UsageError

OLDEST_MYSQL: Final = (8, 0, 19)
OLDEST_MARIADB: Final = (10, 3, 3)
"""The first versions that know the rows of an upsert."""

_YES_OR_NO: Final = ("ssl_disabled", "ssl_verify_cert", "ssl_verify_identity")
_WORDS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_PACKAGE: Final = "cryptography"


def is_mariadb(version: str) -> bool:
    """As the server's handshake tells: 8.0.36 or 5.5.5-10.11.6-MariaDB."""
    return "mariadb" in version.lower()


def refuse_old_server(version: str, where: str) -> None:
    """Raise ServiceUnavailableError for a server without what each commit needs."""
    mariadb = is_mariadb(version)
    # MariaDB may put a version before its own, for clients that know none so high.
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
    """A database as it is named in messages, without a password."""
    return f"{url.host or url.query.get('unix_socket') or 'localhost'}/{url.database}"


def connect(driver: Any, url: URL, options: dict[str, Any]) -> Any:
    """A connection of PyMySQL, with the options that SQLAlchemy has made of the URL.

    Raises UsageError for an option that there is not, ServiceUnavailableError for what is missing on this
    machine; PyMySQL's own errors for what comes from the server.
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
        given["password"] = given["password"].encode()  # as the server's own clients send it
    files = _put_together(given, where)
    try:
        connection = driver.connect(**given)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise UsageError(f"the URL of database {where} has an option that cannot be used: {error}") from error
    except OSError as error:  # only files are read before PyMySQL makes the server's errors its own
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
    """Bring all that is said about TLS into PyMySQL's one option for it; the files that it names."""
    tls = dict(options.get("ssl") or {})
    if "ssl_key_password" in options:
        tls["password"] = options.pop("ssl_key_password")
    if "ssl_verify_cert" in options or "ssl_verify_identity" in options:
        identity = options.pop("ssl_verify_identity", False)
        if identity and not {"ca", "capath"} & set(tls):
            raise UsageError(  # PyMySQL would look at no name then
                f"the URL of database {where} has ssl_verify_identity without ssl_ca; name the file of the "
                f"certificates to trust as ssl_ca too"
            )
        tls["verify_mode"] = options.pop("ssl_verify_cert", False) or identity
        tls.setdefault("check_hostname", identity)
    if tls:
        options["ssl"] = tls
    return [f"ssl_{name}={tls[name]}" for name in ("ca", "capath", "cert", "key") if name in tls]
