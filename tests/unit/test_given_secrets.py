"""No secret stays on a command line, what to type instead is said, and `${NAME}` is a variable."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given, settings, strategies as st
from pyspark import SparkConf
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError
from support.lists import each

from txstream.cli.parameters import keyword_arguments, spark_settings
from txstream.cli.secret_flags import off_the_command_line
from txstream.core.errors import UsageError
from txstream.engine.spark.java_process import without_secrets
from txstream.inspect.databases import upgrade_remedy
from txstream.plugins.web.comparing import Comparing
from txstream.settings import Settings, to_environment
from txstream.settings.given_secrets import (
    as_typed,
    is_secret_pair,
    with_variables,
    without_secrets as without_passwords,
)

HUSH = "postgresql://me:hush@127.0.0.1:1/x"
TYPED = "'postgresql://me:${PASSWORD}@127.0.0.1:1/x'"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (["--database", HUSH], [f"--database {TYPED}"]),
        ([f"--database={HUSH}", "-q"], [f"--database {TYPED}"]),
        (["--state-database", HUSH], [f"--state-database {TYPED}"]),
        (["--schema-registry", "https://me:hush@host"], ["--schema-registry 'https://me:${PASSWORD}@host'"]),
        (["-p", f"url={HUSH}"], ["-p 'url=postgresql://me:${PASSWORD}@127.0.0.1:1/x'"]),
        ([f"-purl={HUSH}"], ["-p 'url=postgresql://me:${PASSWORD}@127.0.0.1:1/x'"]),
        (["--parameter=api_key=hush"], ["--parameter 'api_key=${PASSWORD}'"]),
        (
            ["--spark-conf", "spark.ssl.keyPassword=hush", "--database", HUSH],
            ["--spark-conf 'spark.ssl.keyPassword=${PASSWORD}'", f"--database {TYPED}"],
        ),
    ],
)
def test_secrets_leave_the_command_line(
    words: list[str], typed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved, variables, advice = off_the_command_line(["run", "m:f", *words])
    assert advice == typed
    assert list(variables.values()) == ["hush"] * len(typed)
    assert "hush" not in " ".join(moved)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert [with_variables(word, "it") for word in moved] == ["run", "m:f", *words]
    assert off_the_command_line(moved) == (moved, {}, [])


@pytest.mark.parametrize("flag", ["--database", "-p"])
def test_what_is_no_flags_value_stays(flag: str) -> None:
    words = ["why", "counts", HUSH, flag, "sqlite:///x.db", "--", flag, HUSH, "password=hush"]
    assert off_the_command_line(words) == (words, {}, [])


def test_a_process_with_a_password_on_its_command_line_loses_it(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "from pathlib import Path\n"
        "def f(url):\n"
        "    Path('seen').write_text(url + ' ' + Path('/proc/self/cmdline').read_text())\n"
    )
    command = [sys.executable, "-m", "txstream", "describe", "m:f", "-p", "url=postgresql://me:a%2Fb+c@h/x"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, "f returns no topology"
    url, shown = (tmp_path / "seen").read_text().split(" ", 1)
    assert url == "postgresql://me:a%2Fb%2Bc@h/x"
    assert shown.split("\0")[1:-1] == [*command[1:-1], "url=postgresql://me:${TXSTREAM_SECRET_1}@h/x"]
    assert "all users of this machine" in done.stderr
    assert "-p 'url=postgresql://me:${PASSWORD}@h/x'" in done.stderr


@each(
    "text",
    [
        "postgresql://me:p@ss@host/db",
        "postgresql://me:pa/ss@host/db",
        "redis://:hush@host/0",
        "mysql+pymysql://me:123@host/db",
        "postgresql://me@host/db?password=hush&sslmode=disable",
        "mysql://me@host/db?ssl_key_password=hush",
        "postgresql://me:***@host/db",
        "jdbc:postgresql://host/db?user=me&password=hush",
    ],
)
def test_a_password_is_found(text: str) -> None:
    public = without_passwords(text)
    assert "hush" not in public
    assert "${PASSWORD}" in public


@settings(max_examples=300, deadline=None)
@example("12/34", False)
@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1), st.booleans())
def test_what_sqlalchemy_takes_for_a_password_is_found(password: str, is_quoted: bool) -> None:
    """It judges by its own parser, for any spelling. Digits before a slash look like a port."""
    text = f"postgresql://me:{quote(password, safe='') if is_quoted else password}@host:5432/db"
    try:
        found = make_url(text)
    except (ArgumentError, ValueError):
        return
    assume(found.password and not re.fullmatch(r"\$\{\w+\}", found.password))
    assert make_url(without_passwords(text)) == found.set(password="${PASSWORD}")


@each(
    "text",
    [
        "sqlite:////srv/state.db",
        "sqlite:///C:/data@home/state.db",
        "postgresql://me@host:5432/db?sslmode=require&sslkey=/etc/key&passfile=/etc/pgpass",
        "postgresql://postgres:@/postgres?host=/tmp/x",
        "postgresql://me:${DB_PASSWORD}@host/db",
        "postgresql://me@host/db?password=${DB_PASSWORD}",
        "mysql://me@host/db?ssl_key=/etc/key.pem&read_default_file=/etc/my.cnf",
        "http://host:8081/mail/@me",
        "${DATABASE_URL}",
        "127.0.0.1:9092,127.0.0.1:9093",
        "",
    ],
)
def test_what_has_none_is_left_alone(text: str) -> None:
    assert without_passwords(text) == text


@each("pair", ["tokens=5", "token_separator=,", "key=word", "password=${X}", "secret="])
def test_pairs_that_are_no_secrets(pair: str) -> None:
    assert not is_secret_pair(pair)


def test_a_variable_is_written_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "p@ss/w:o?r%d ${HOME}")
    monkeypatch.setenv("DB_HOST", "db:5433")
    url = make_url(
        with_variables("postgresql://me:${DB_PASSWORD}@${DB_HOST}/x?password=${DB_PASSWORD}", "it")
    )
    assert (url.password, url.host, url.port) == ("p@ss/w:o?r%d ${HOME}", "db", 5433)
    assert url.query["password"] == url.password
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:a%2Fb@db/x")
    assert with_variables("${DATABASE_URL}", "it") == "postgresql://me:a%2Fb@db/x"


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_not_set(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is not None:
        monkeypatch.setenv("DB_PASSWORD", value)
    with pytest.raises(UsageError, match=r"database has \$\{DB_PASSWORD\} in it.*no variable DB_PASSWORD"):
        Settings(database="postgresql://me:${DB_PASSWORD}@db/x").resolve_given()


def test_settings_take_variables_wherever_a_url_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONE", "a/b")
    (tmp_path / "txstream.toml").write_text(
        'database_file = "url"\nstate_databases = ["mysql://me:${ONE}@h/x"]\n'
    )
    (tmp_path / "url").write_text("postgresql://me:${ONE}@db/x\n")
    monkeypatch.setenv("TXSTREAM_SCHEMA_REGISTRY", "https://me:${ONE}@host")
    found = Settings().resolve_given(tmp_path)
    assert found.database == "postgresql://me:a%2Fb@db/x"
    assert found.state_databases == ("mysql://me:a%2Fb@h/x",)
    assert found.schema_registry == "https://me:a%2Fb@host"
    assert found.resolve_given(tmp_path) == found


def test_a_child_process_finds_the_same_by_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Settings(
        zookeeper="zk:1",
        database=HUSH,
        state_databases=("sqlite:///a.db", "sqlite:///b.db"),
        schema_registry="https://me:hush@host",
        zookeeper_auth="digest",
        zookeeper_user="me",
        zookeeper_password="hush",
    ).resolve_given(tmp_path)
    for name, value in to_environment(given).items():
        monkeypatch.setenv(name, value)
    assert Settings().resolve_given(tmp_path) == given


def test_parameters_and_settings_of_spark_take_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hush")

    def factory(password: str, n: int = 0) -> None: ...

    assert keyword_arguments(factory, ["password=${SECRET}"], "m:f") == {"password": "hush"}
    with pytest.raises(UsageError, match=r"-p n=\$\{SECRET\}") as caught:
        keyword_arguments(factory, ["password=x${SECRET}", "n=${SECRET}"], "m:f")
    assert "hush" not in str(caught.value)
    pairs = ["spark.authenticate.secret=${SECRET}", "spark.jdbc=jdbc:x://h/d?password=${SECRET}"]
    conf = spark_settings([*pairs, "spark.executor.memory=1g"])
    assert conf["spark.authenticate.secret"] == "hush"
    # Java gets both, but not on its command line.
    assert dict(without_secrets(SparkConf(loadDefaults=False).setAll(list(conf.items()))).getAll()) == {
        "spark.executor.memory": "1g"
    }


def test_javas_command_line_has_no_secrets() -> None:
    conf = SparkConf(loadDefaults=False).setMaster("local[1]")
    conf.set("spark.ssl.keyPassword", "hush").set("spark.authenticate.secret", "hush")
    conf.set("spark.hadoop.fs.s3a.access.key", "hush").set("spark.executor.memory", "1g")
    assert dict(without_secrets(conf).getAll()) == {"spark.master": "local[1]", "spark.executor.memory": "1g"}
    assert conf.get("spark.ssl.keyPassword") == "hush"


def test_a_remedy_can_be_typed() -> None:
    assert f"--database {TYPED}`" in upgrade_remedy("postgresql://me:***@127.0.0.1:1/x")
    assert as_typed("sqlite:////srv/state.db") == "sqlite:////srv/state.db"


def test_the_page_starts_no_comparison_with_a_secret(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the parameter password has a secret"):
        Comparing(Settings(data_dir=tmp_path)).words_of({"parameters": ["password=hush"]})
