"""Which tests `make test` runs in one process because they share servers, and in which order they begin."""

from __future__ import annotations

from pathlib import PurePosixPath

MYSQL = "mysql"
POSTGRES = "postgres"
KAFKA = "kafka"
SERVICES = "services"
SPARK = "spark"

_LONGEST = (SPARK, SERVICES, KAFKA)
_ON_KAFKA = ("test_kafka_", "test_embedded_")
_ON_SPARK = ("spark", "dataframe", "recomputation", "replay", "word_count")


def process_of(nodeid: str) -> str:
    """Return a name; tests of the same name run in one process, one after the other.

    Tests in `integration/` form five groups. Files that end with `_mysql.py` use MariaDB and MySQL, and
    embedded services where drivers run over them; those of `_postgres.py` use a PostgreSQL of their own.
    Those named for Spark share a session, those named for Kafka or the embedded services use no database
    server, and the others share the remaining services. All other tests are grouped by file: each file of
    `acceptance/` starts its own services, and unit tests have none.
    """
    file = nodeid.partition("::")[0]
    if not file.startswith("tests/integration/"):
        return file
    if file.endswith("_mysql.py"):
        return MYSQL
    if file.endswith("_postgres.py"):
        return POSTGRES
    name = PurePosixPath(file).name
    if any(word in name for word in _ON_SPARK):
        return SPARK
    return KAFKA if name.startswith(_ON_KAFKA) else SERVICES


def turn_of(nodeid: str) -> int:
    """Return the order of a test: smaller numbers begin earlier. Unit tests fill the gap at the end."""
    process = process_of(nodeid)
    if process in _LONGEST:
        return _LONGEST.index(process)
    return len(_LONGEST) + process.startswith("tests/unit/")
