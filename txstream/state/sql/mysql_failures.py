"""What the error codes of MySQL, MariaDB and PyMySQL mean to a batch."""

from __future__ import annotations

from txstream.state.sql.failures import Failure, Kind, one_line

# https://mariadb.com/kb/en/mariadb-error-code-reference/,
# https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html
_KINDS: dict[int, Kind] = {
    **dict.fromkeys(
        (
            1205,  # ER_LOCK_WAIT_TIMEOUT
            1213,  # ER_LOCK_DEADLOCK
            1020,  # ER_CHECKREAD: changed since it was read
            1412,  # ER_TABLE_DEF_CHANGED: somebody defined a table meanwhile
            1614,  # ER_XA_RBDEADLOCK
            1613,  # ER_XA_RBTIMEOUT
            1689,  # ER_LOCK_ABORTED
            3058,  # ER_USER_LOCK_DEADLOCK
            3101,  # ER_TRANSACTION_ROLLBACK_DURING_COMMIT: another server of its group was first
            3572,  # ER_LOCK_NOWAIT
        ),
        Kind.LOCKED,
    ),
    **dict.fromkeys(
        (
            1048,  # ER_BAD_NULL_ERROR
            1062,  # ER_DUP_ENTRY
            1071,  # ER_TOO_LONG_KEY
            1118,  # ER_TOO_BIG_ROWSIZE
            1153,  # ER_NET_PACKET_TOO_LARGE
            1264,  # ER_WARN_DATA_OUT_OF_RANGE
            1265,  # WARN_DATA_TRUNCATED
            1292,  # ER_TRUNCATED_WRONG_VALUE
            1301,  # ER_WARN_ALLOWED_PACKET_OVERFLOWED
            1364,  # ER_NO_DEFAULT_FOR_FIELD
            1365,  # ER_DIVISION_BY_ZERO
            1366,  # ER_TRUNCATED_WRONG_VALUE_FOR_FIELD
            1367,  # ER_ILLEGAL_VALUE_FOR_TYPE
            1406,  # ER_DATA_TOO_LONG
            1411,  # ER_WRONG_VALUE_FOR_TYPE
            1425,  # ER_TOO_BIG_SCALE
            1426,  # ER_TOO_BIG_PRECISION
            1451,  # ER_ROW_IS_REFERENCED_2
            1452,  # ER_NO_REFERENCED_ROW_2
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
            1021,  # ER_DISK_FULL
            1026,  # ER_ERROR_ON_WRITE
            1030,  # ER_GET_ERRNO: the engine's own, often of the disk
            1037,  # ER_OUTOFMEMORY
            1038,  # ER_OUT_OF_SORTMEMORY
            1040,  # ER_CON_COUNT_ERROR
            1041,  # ER_OUT_OF_RESOURCES
            1042,  # ER_BAD_HOST_ERROR
            1043,  # ER_HANDSHAKE_ERROR
            1045,  # ER_ACCESS_DENIED_ERROR: wrong user or password
            1049,  # ER_BAD_DB_ERROR
            1053,  # ER_SERVER_SHUTDOWN
            1114,  # ER_RECORD_FILE_FULL
            1129,  # ER_HOST_IS_BLOCKED
            1130,  # ER_HOST_NOT_PRIVILEGED
            1152,  # ER_ABORTING_CONNECTION
            1158,  # ER_NET_READ_ERROR
            1159,  # ER_NET_READ_INTERRUPTED
            1160,  # ER_NET_ERROR_ON_WRITE
            1161,  # ER_NET_WRITE_INTERRUPTED
            1180,  # ER_ERROR_DURING_COMMIT
            1184,  # ER_NEW_ABORTING_CONNECTION
            1203,  # ER_TOO_MANY_USER_CONNECTIONS
            1206,  # ER_LOCK_TABLE_FULL: too small a buffer pool
            1223,  # ER_CANT_UPDATE_WITH_READLOCK
            1226,  # ER_USER_LIMIT_REACHED
            1290,  # ER_OPTION_PREVENTS_STATEMENT: a read-only server
            1317,  # ER_QUERY_INTERRUPTED
            1698,  # ER_ACCESS_DENIED_NO_PASSWORD_ERROR
            1792,  # ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
            1820,  # ER_MUST_CHANGE_PASSWORD
            1836,  # ER_READ_ONLY_MODE
            1862,  # ER_MUST_CHANGE_PASSWORD_LOGIN
            1878,  # ER_TEMP_FILE_WRITE_FAILURE
            1927,  # ER_CONNECTION_KILLED
            1969,  # ER_STATEMENT_TIMEOUT of MariaDB
            3019,  # ER_INNODB_UNDO_LOG_FULL
            3024,  # ER_QUERY_TIMEOUT of MySQL
            3032,  # ER_SERVER_OFFLINE_MODE
            3100,  # ER_RUN_HOOK_ERROR: its group of servers has no majority
            3118,  # ER_ACCOUNT_HAS_BEEN_LOCKED
            3159,  # ER_SECURE_TRANSPORT_REQUIRED
            3168,  # ER_SERVER_ISNT_AVAILABLE
            4031,  # ER_CLIENT_INTERACTION_TIMEOUT: MySQL's wait_timeout
        ),
        Kind.UNREACHABLE,
    ),
}


def classify(cause: BaseException, *, lost: bool) -> Failure:
    """What a driver's exception means; `lost` when SQLAlchemy gave its connection up."""
    code = cause.args[0] if cause.args and isinstance(cause.args[0], int) else None
    if code is None:
        return Failure(Kind.UNREACHABLE if lost else Kind.OTHER, one_line(cause))
    words = str(cause.args[1]) if len(cause.args) > 1 else ""
    message = one_line(RuntimeError(words or "the connection is closed"))
    if lost or code == 0 or 2000 <= code < 3000:  # the client's own: refused, gone, cut
        return Failure(Kind.UNREACHABLE, message)
    return Failure(_KINDS.get(code, Kind.OTHER), f"{message} (error {code})")
