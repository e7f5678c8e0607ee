"""`txstream doctor` looks at a MariaDB, which commits each CREATE by itself, and leaves nothing in it."""

from __future__ import annotations

import sqlalchemy as sa
from mysql_servers import MariaDBServer

from txstream.plugins.doctor.checks import Check
from txstream.plugins.doctor.clocks import Clocks
from txstream.plugins.doctor.database_check import look_at_database
from txstream.settings import Settings
from txstream.state import open_sql_database


def look(url: str, *views: str) -> dict[str, Check]:
    clocks = Clocks()
    checks = look_at_database(Settings(), url, ["sums"], clocks, views=views)
    found = {check.name.rpartition(": ")[2]: check for check in checks}
    assert len(clocks.ahead) == 1
    return found


def test_grants(mariadb: MariaDBServer, unique: str) -> None:
    url = mariadb.create_database(unique)
    found = look(url)
    assert {name for name, check in found.items() if not check.ok} == set()
    assert found["isolation"].message == "READ COMMITTED"
    assert mariadb.execute(f"SHOW TABLES IN `{unique}`") == []
    mariadb.create_account(unique, f"SELECT ON `{unique}`.*")
    mine = sa.make_url(url).set(username=unique).render_as_string(hide_password=False)
    [check] = [check for check in look(mine).values() if not check.ok]
    assert check.remedy == f"GRANT ALL ON {unique}.* TO {unique};"
    database = open_sql_database(url)
    database.ensure_framework_tables()
    database.close()
    [check] = [check for check in look(mine).values() if not check.ok]
    assert "may not read and write txstream_" in check.message
    mariadb.execute(
        f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP ON `{unique}`.* TO `{unique}`@`127.0.0.1`"
    )
    assert {name for name, check in look(mine).items() if not check.ok} == set()
    [(name, check)] = [found for found in look(mine, "users").items() if not found[1].ok]
    assert (name, check.remedy) == ("views", f"GRANT ALL ON {unique}.* TO {unique};")
    assert "may not create views, and there is no users yet" in check.message
    mariadb.execute(f"GRANT CREATE VIEW ON `{unique}`.* TO `{unique}`@`127.0.0.1`")
    assert look(mine, "users")["views"].ok
    assert "views" not in look(mine)
    assert not [name for (name,) in mariadb.execute(f"SHOW TABLES IN `{unique}`") if "doctor" in name]


def test_triggers_that_may_change_rows_are_named(mariadb: MariaDBServer, unique: str) -> None:
    url = mariadb.create_database(unique)
    mariadb.execute(
        f"CREATE TABLE `{unique}`.sums (n INT PRIMARY KEY)",
        f"CREATE TRIGGER `{unique}`.audit AFTER INSERT ON `{unique}`.sums FOR EACH ROW SET @n = 1",
    )
    assert "triggers" not in look(url)
    mariadb.execute(
        f"CREATE TRIGGER `{unique}`.sets BEFORE INSERT ON `{unique}`.sums FOR EACH ROW SET new.n = 1"
    )
    found = look(url)["triggers"]
    assert (found.ok, found.message.partition(", which")[0]) == (
        True,
        "note: table sums has the trigger sets",
    )
