"""Connecting to MySQL and MariaDB: the options of a URL, and what errors mean, when connecting and later.

PyMySQL misreads some options in the form in which SQLAlchemy passes them: it takes any text as true, a
password as Latin-1, and ignores certificates beside the options that verify them. Here each option means what
it says.

An error's DB-API class says what it means for a batch, with exceptions. PyMySQL raises OperationalError,
which means an outage, for every code that it does not know. An error about the statement itself (SQLSTATE
class 42) would come again, so it is not an outage.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

from sqlalchemy import URL

from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.state.sql.errors import Failure, Kind, one_line

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
    """Whether it is MariaDB, by the version in the server's handshake: 8.0.36 or 5.5.5-10.11.6-MariaDB."""
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


# https://mariadb.com/kb/en/mariadb-error-code-reference/,
# https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html
_CLASSES = {
    "DataError": Kind.VALUE,
    "IntegrityError": Kind.VALUE,
    "OperationalError": Kind.UNREACHABLE,
}
_EXCEPTIONS: dict[int, Kind] = {
    **dict.fromkeys(
        (
            1205,  # ER_LOCK_WAIT_TIMEOUT
            1213,  # ER_LOCK_DEADLOCK
            1020,  # ER_CHECKREAD: the row was changed after it was read
            1412,  # ER_TABLE_DEF_CHANGED: another session altered a table meanwhile
            1614,  # ER_XA_RBDEADLOCK
            1613,  # ER_XA_RBTIMEOUT
            1689,  # ER_LOCK_ABORTED
            3058,  # ER_USER_LOCK_DEADLOCK
            3101,  # ER_TRANSACTION_ROLLBACK_DURING_COMMIT: another server of the group was first
            3572,  # ER_LOCK_NOWAIT
        ),
        Kind.LOCKED,
    ),
    **dict.fromkeys(
        (
            1071,  # ER_TOO_LONG_KEY
            1118,  # ER_TOO_BIG_ROWSIZE
            1153,  # ER_NET_PACKET_TOO_LARGE
            1292,  # ER_TRUNCATED_WRONG_VALUE
            1301,  # ER_WARN_ALLOWED_PACKET_OVERFLOWED
            1364,  # ER_NO_DEFAULT_FOR_FIELD
            1365,  # ER_DIVISION_BY_ZERO
            1411,  # ER_WRONG_VALUE_FOR_TYPE
            1425,  # ER_TOO_BIG_SCALE
            1426,  # ER_TOO_BIG_PRECISION
            1690,  # ER_DATA_OUT_OF_RANGE
            3819,  # ER_CHECK_CONSTRAINT_VIOLATED of MySQL
            4025,  # ER_CONSTRAINT_FAILED of MariaDB
        ),
        Kind.VALUE,
    ),
    **dict.fromkeys(
        (
            1051,  # ER_BAD_TABLE_ERROR
            1054,  # ER_BAD_FIELD_ERROR
            1146,  # ER_NO_SUCH_TABLE
            1356,  # ER_VIEW_INVALID
        ),
        Kind.MISSING,
    ),
    **dict.fromkeys(
        (
            1044,  # ER_DBACCESS_DENIED_ERROR
            1142,  # ER_TABLEACCESS_DENIED_ERROR
            1143,  # ER_COLUMNACCESS_DENIED_ERROR
            1227,  # ER_SPECIFIC_ACCESS_DENIED_ERROR
            1370,  # ER_PROCACCESS_DENIED_ERROR
        ),
        Kind.DENIED,
    ),
    **dict.fromkeys(
        (
            1033,  # ER_NOT_FORM_FILE
            1034,  # ER_NOT_KEYFILE
            1194,  # ER_CRASHED_ON_USAGE
            1195,  # ER_CRASHED_ON_REPAIR
            1712,  # ER_INDEX_CORRUPT
            1877,  # ER_TABLE_CORRUPT
            1932,  # ER_NO_SUCH_TABLE_IN_ENGINE
        ),
        Kind.DAMAGED,
    ),
    **dict.fromkeys(
        (
            1049,  # ER_BAD_DB_ERROR
            1203,  # ER_TOO_MANY_USER_CONNECTIONS
            1226,  # ER_USER_LIMIT_REACHED
        ),
        Kind.UNREACHABLE,
    ),
}


def classify(cause: BaseException, *, lost: bool) -> Failure:
    """Return what a driver's exception means. `lost`: SQLAlchemy has invalidated the connection."""
    code = cause.args[0] if cause.args and isinstance(cause.args[0], int) else None
    if code is None:
        return Failure(Kind.UNREACHABLE if lost else Kind.OTHER, one_line(cause))
    words = str(cause.args[1]) if len(cause.args) > 1 else ""
    message = one_line(RuntimeError(words or "the connection is closed"))
    if lost or code == 0 or 2000 <= code < 3000:  # the client's own errors: refused, gone, cut
        return Failure(Kind.UNREACHABLE, message)
    statement = (getattr(cause, "sqlstate", None) or "").startswith("42")
    usual = Kind.OTHER if statement else _CLASSES.get(type(cause).__name__, Kind.OTHER)
    return Failure(_EXCEPTIONS.get(code, usual), f"{message} (error {code})")
