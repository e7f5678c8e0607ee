"""Which tests `make test` runs in one process: servers are shared, and both processes have as much to do."""

from __future__ import annotations

MYSQL = "mysql"
POSTGRES = "postgres"
SERVICES = "services"


def process_of(nodeid: str) -> str:
    """Tests of one answer run in one process, one after the other.

    Tests in `integration/` are in three groups: those whose file ends with `_mysql.py` have MariaDB and MySQL
    and nothing else, those of `_postgres.py` have a PostgreSQL of their own; the others share the remaining
    services. The rest go by their file: each of `acceptance/` starts its own services, unit tests have none.
    The answers are handed out in the order of the folders, so unit tests fill the gap at the end.
    """
    file = nodeid.partition("::")[0]
    if not file.startswith("tests/integration/"):
        return file
    if file.endswith("_mysql.py"):
        return MYSQL
    return POSTGRES if file.endswith("_postgres.py") else SERVICES
