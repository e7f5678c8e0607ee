"""Which tests `make test` runs in one process, because they share servers, and in which order they begin."""

from __future__ import annotations

from pathlib import PurePosixPath

MYSQL = "mysql"
POSTGRES = "postgres"
SERVICES = "services"
SPARK = "spark"

_LONGEST = (SPARK, SERVICES)
_ON_SPARK = ("spark", "dataframe", "recomputation", "replay", "word_count")


def process_of(nodeid: str) -> str:
    """Tests of one answer run in one process, one after the other.

    Tests in `integration/` are in four groups: those whose file ends with `_mysql.py` have MariaDB and MySQL
    and nothing else, those of `_postgres.py` have a PostgreSQL of their own; those that are named for Spark
    share a session, and the others the remaining services. The rest go by their file: each of `acceptance/`
    starts its own services, unit tests have none.
    """
    file = nodeid.partition("::")[0]
    if not file.startswith("tests/integration/"):
        return file
    if file.endswith("_mysql.py"):
        return MYSQL
    if file.endswith("_postgres.py"):
        return POSTGRES
    return SPARK if any(word in PurePosixPath(file).name for word in _ON_SPARK) else SERVICES


def turn_of(nodeid: str) -> int:
    """Tests of a smaller number begin earlier: unit tests fill the gap at the end."""
    process = process_of(nodeid)
    if process in _LONGEST:
        return _LONGEST.index(process)
    return len(_LONGEST) + process.startswith("tests/unit/")
