"""State in a PostgreSQL whose databases sort as a language does: nothing of ours depends on that order.

The wheel's server has no ICU, and a system need not have any locale but C. So the C library's own compiler
makes a locale of a few lines here, in which capitals and accented letters stand next to their plain letter.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from postgres import PostgresServer
from support.states import Rig, word_table
from support.tables import execute

from txstream.api.reducers import Last, Max, Min
from txstream.core.errors import StateTableError
from txstream.core.transaction import Txid
from txstream.state import StateDatabase

LOCALE = "txstream.UTF-8"
# In dictionary order; the order of their bytes is different.
WORDS = ["a", "A", "b", "B", "e", "E", "é", "f", "\uff01", "\U0001f600"]


def make_locale(folder: Path) -> None:
    """Make a locale for this process's C library, which finds it in `folder` by the variable LOCPATH."""
    characters = [*range(0x80), 0xE9, 0xFF01, 0x1F600]
    charmap = ["<code_set_name> UTF-8", "<comment_char> %", "<escape_char> /"]
    charmap += ["<mb_cur_min> 1", "<mb_cur_max> 6", "CHARMAP"]
    for number in characters:
        code = "".join(f"/x{byte:02x}" for byte in chr(number).encode())
        charmap.append(f"{_symbol(chr(number))} {code} NAME")
    order = []
    for small in "abcdefghijklmnopqrstuvwxyz":
        family = [small, small.upper(), *("é" if small == "e" else "")]
        order += [f"{_symbol(one)} {_symbol(small)};{_symbol(one)}" for one in family]
    rules = ["comment_char %", "escape_char /", "LC_COLLATE", "order_start forward;forward", *order]
    rules += ["UNDEFINED IGNORE;IGNORE", "order_end", "END LC_COLLATE"]
    (folder / "charmap").write_text("\n".join([*charmap, "END CHARMAP", ""]), encoding="ascii")
    (folder / "rules").write_text("\n".join([*rules, ""]), encoding="ascii")
    # Its exit status only reports warnings, about what this locale leaves out.
    subprocess.run(
        ["localedef", "-c", "-f", "./charmap", "-i", "./rules", f"./{LOCALE}"],
        cwd=folder,
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert (folder / LOCALE / "LC_COLLATE").exists()


def _symbol(character: str) -> str:
    number = ord(character)
    return f"<U{number:04X}>" if number < 0x10000 else f"<U{number:08X}>"  # as localedef calls them


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    # Not below pytest's own folder, which the server's user may not enter.
    with (
        tempfile.TemporaryDirectory(prefix="txstream-locale-") as name,
        pytest.MonkeyPatch.context() as patch,
    ):
        Path(name).chmod(0o755)
        make_locale(Path(name))
        patch.setenv("LOCPATH", f"{name}:/usr/lib/locale")
        server = PostgresServer(tmp_path_factory.mktemp("locales"))
        yield server
        server.close()


@pytest.fixture
def url(server: PostgresServer, unique: str) -> str:
    name = f"sorted_{unique}"
    with psycopg.connect(host=str(server.data), user="postgres", autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 LC_COLLATE '{LOCALE}' LC_CTYPE 'C.UTF-8'"
        )
    return server.url(name)


class TestOrder:
    def test_the_database_sorts_as_a_language_does(self, url: str) -> None:
        """Otherwise the other tests would show nothing."""
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            found = connection.exec_driver_sql("SELECT 'a' < 'B', 'B' < 'e', 'é' < 'f'").one()
        engine.dispose()
        assert tuple(found) == (True, True, True)
        assert sorted(WORDS) != WORDS

    def test_least_greatest_and_last_are_those_of_the_folds(self, database: StateDatabase, url: str) -> None:
        spec = word_table(
            value="least string, greatest string, last string",
            reducers={"least": Min("x"), "greatest": Max("x"), "last": Last("x", by="x")},
        )
        rig = Rig(database, url, spec).join()
        pairs = [(one, other) for one in WORDS for other in WORDS]
        rig.commit(1, {f"{one} {other}": (one, one, one) for one, other in pairs})
        rig.commit(2, {f"{one} {other}": (other, other, other) for one, other in pairs})
        keys = rig.table_of({f"{one} {other}": ("", "", "") for one, other in pairs}).select(["word"])
        rows = {row.pop("word"): row for row in database.read(spec, keys, before=Txid(3)).to_pylist()}
        assert rows == {
            f"{one} {other}": {"least": min(one, other), "greatest": max(one, other), "last": other}
            for one, other in pairs
        }

    def test_what_is_shown_is_in_the_order_of_the_values(self, database: StateDatabase, url: str) -> None:
        last = {"v": Last("x", by="x")}
        spec = word_table(key="first string, second string", value="v string", reducers=last)
        rig = Rig(database, url, spec).join()
        keys = [(one, other) for one in WORDS for other in ("b", "A")]
        rig.commit(1, {key: key[0] for key in keys})
        with database.read_state("words") as reading:
            top = [tuple(row.key.values()) for row in reading.top("word_count", 100)]
            written = [tuple(row.key.values()) for row in reading.written_by("word_count", 1)]
        assert top == sorted(sorted(keys), key=lambda key: key[0], reverse=True)
        assert written == sorted(keys)
        shown = [(row["first"], row["second"]) for row in database.top("word_count", topology="words", n=100)]
        assert shown == top


class TestKeys:
    def test_a_table_of_an_earlier_release_has_the_order_of_its_database(self, rig: Rig) -> None:
        execute(rig.url, "ALTER TABLE word_count ALTER COLUMN word TYPE text")
        rig.join(first_run=False)
        rig.commit(1, dict.fromkeys(WORDS, 1))
        rig.commit(2, dict.fromkeys(WORDS, 1))
        assert rig.values() == dict.fromkeys(WORDS, 2)

    def test_an_order_in_which_other_texts_may_be_equal_is_refused(self, rig: Rig) -> None:
        execute(rig.url, 'ALTER TABLE word_count ALTER COLUMN word TYPE text COLLATE "ucs_basic"')
        with pytest.raises(StateTableError, match="column 'word' is TEXT COLLATE ucs_basic NOT NULL"):
            rig.join(first_run=False)
