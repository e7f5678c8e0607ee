"""The framework's own tables: the contract on SQLite, and what holds whatever the database is."""

from __future__ import annotations

import logging
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from support.framework_contract import AtomicFrameworkContract
from support.old_revisions import at_revision

import txstream
from tracked_wheel import packaged_files
from txstream.state import open_database, open_sql_database
from txstream.state.sql import framework, revisions

IMPORTS = """
import sys
import txstream.state
print([name for name in ("alembic", "psycopg", "pyspark", "kafka", "kazoo") if name in sys.modules])
"""

CHECK = """
import sys
from txstream.state import open_database, open_sql_database
from txstream.api.errors import TxstreamError
import txstream
print(txstream.__file__)
for work in ("ensure_framework_tables", "upgrade"):
    try:
        getattr(open_database(sys.argv[1]), work)()
        print("fine")
    except TxstreamError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


class TestContract(AtomicFrameworkContract):
    pass


def test_every_script_is_known_without_reading_it() -> None:
    config = Config()
    config.set_main_option("script_location", str(revisions._script_folder()))
    scripts = ScriptDirectory.from_config(config)
    in_order = [script.revision for script in scripts.walk_revisions()][::-1]
    assert tuple(in_order) == framework.REVISIONS
    assert scripts.get_heads() == [framework.HEAD]


def test_nothing_is_said_while_tables_are_made(
    url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logging.getLogger("alembic").setLevel(logging.NOTSET)
    root = logging.getLogger()
    handler = logging.StreamHandler()
    root.addHandler(handler)
    monkeypatch.setattr(root, "level", logging.INFO)
    try:
        open_database(url).ensure_framework_tables()
    finally:
        root.removeHandler(handler)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_importing_state_is_cheap() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_new_database_needs_no_script_but_an_older_one_does(tmp_path: Path, url: str) -> None:
    """Executors and clusters get the framework as a zip, out of which no script can be read."""
    database = open_sql_database(url)
    database.ensure_framework_tables()
    at_revision(database, url, framework.REVISIONS[0])
    new = f"sqlite:///{tmp_path}/new.db"
    archive = tmp_path / "framework.zip"
    with zipfile.ZipFile(archive, "w") as out:
        for source, installed in packaged_files().items():
            out.write(Path(txstream.__file__).parents[1] / source, str(installed))

    def from_the_archive(database: str) -> list[str]:
        command = [sys.executable, "-c", CHECK, database]
        env = {"PYTHONPATH": str(archive)}
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=env)
        return done.stdout.splitlines()

    loaded_from, created, upgraded = from_the_archive(new)
    assert loaded_from.startswith(str(archive))
    assert (created, upgraded) == ("fine", "fine")
    _, checked, upgraded = from_the_archive(url)
    assert "txstream db upgrade" in checked
    assert upgraded.startswith("SchemaRevisionError")
    assert "`txstream db upgrade` where it is installed" in upgraded
