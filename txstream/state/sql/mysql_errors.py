"""What the errors of MySQL, MariaDB and PyMySQL mean for a batch: their DB-API class tells, with exceptions.

PyMySQL raises OperationalError, which means an outage, for every code that it does not know. An error about
the statement itself (SQLSTATE class 42) would come again, so it is not an outage.
"""

from __future__ import annotations

from txstream.state.sql.errors import Failure, Kind, one_line

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
