"""Which tests `make test` runs in one process, so that each service is started once and both processes have
about as much to do."""

from __future__ import annotations

SERVICES = "services"
MYSQL = "mysql"


def process_of(nodeid: str) -> str:
    """Tests of one answer run in one process, one after the other.

    Tests with real services are in two groups: those whose file ends with `_mysql.py` have MariaDB and MySQL
    and nothing else; all others have the other services. The rest go by their file. The groups are handed out
    by their size, so each of two processes begins with one of the two, and what is left fills the gap.
    """
    file = nodeid.partition("::")[0]
    if not file.startswith(("tests/acceptance/", "tests/integration/")):
        return file
    return MYSQL if file.endswith("_mysql.py") else SERVICES
