"""No secret on a command line: each flag refuses one and says what to type, and `${NAME}` is a variable."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from pyspark import SparkConf
from sqlalchemy import make_url

from txstream.api.errors import UsageError
from txstream.cli.main import main
from txstream.cli.parameters import keyword_arguments, spark_settings
from txstream.engine.spark.java_process import without_secrets
from txstream.given_secrets import as_typed, refuse_secret, refuse_secret_pair, with_variables
from txstream.inspect.databases import upgrade_remedy
from txstream.settings import Settings, to_environment
from txstream.ui.comparing import Comparing

AWAY = ["--zookeeper", "127.0.0.1:1", "--connect-timeout", "0.2"]
HUSH = "postgresql://me:hush@127.0.0.1:1/x"
TYPED = "'postgresql://me:${PASSWORD}@127.0.0.1:1/x'"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (["topologies", *AWAY, "--database", HUSH], f"--database {TYPED}"),
        (["db", "upgrade", f"--database={HUSH}"], f"--database {TYPED}"),
        (["state", "list", "words", *AWAY, "--state-database", HUSH], f"--state-database {TYPED}"),
        (
            ["topologies", *AWAY, "--schema-registry", "https://me:hush@host"],
            "--schema-registry 'https://me:${PASSWORD}@host'",
        ),
        (["run", "m:f", *AWAY, "-p", f"url={HUSH}"], "-p 'url=postgresql://me:${PASSWORD}@127.0.0.1:1/x'"),
        (
            ["run", "m:f", *AWAY, "--spark-conf", "spark.authenticate.secret=hush"],
            "--spark-conf 'spark.authenticate.secret=${PASSWORD}'",
        ),
        (
            ["doctor", *AWAY, "--no-spark", "--spark-conf", "spark.ssl.keyPassword=hush"],
            "--spark-conf 'spark.ssl.keyPassword=${PASSWORD}'",
        ),
        (
            ["simulate", "txstream.examples.word_count:topology", "-p", "api_key=hush"],
            "-p 'api_key=${PASSWORD}'",
        ),
    ],
)
def test_a_password_is_refused_with_what_to_type_instead(
    words: list[str], typed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.py").write_text("def f(url=None):\n    raise AssertionError('it was called')\n")
    assert main(words) == 2
    told = capsys.readouterr().err
    assert typed in told
    assert "hush" not in told
    # What it says is accepted: the same command ends for other reasons (nobody is there).
    flag, value = shlex.split(typed)
    refuse_secret(flag, value)
    name, _, text = value.partition("=")
    refuse_secret_pair(flag, name, text)


def test_a_database_names_the_other_ways(capsys: pytest.CaptureFixture[str]) -> None:
    main(["topologies", *AWAY, "--database", HUSH])
    told = capsys.readouterr().err
    assert "--database-file" in told
    assert "TXSTREAM_DATABASE" in told


@pytest.mark.parametrize(
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
    with pytest.raises(UsageError) as caught:
        refuse_secret("--database", text)
    assert "hush" not in str(caught.value)
    assert "${PASSWORD}" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "sqlite:////srv/state.db",
        "sqlite:///C:/data@home/state.db",
        "postgresql://me@host:5432/db?sslmode=require&sslkey=/etc/key&passfile=/etc/pgpass",
        "postgresql://me:${DB_PASSWORD}@host/db",
        "postgresql://me@host/db?password=${DB_PASSWORD}",
        "mysql://me@host/db?ssl_key=/etc/key.pem&read_default_file=/etc/my.cnf",
        "http://host:8081/mail/@me",
        "${DATABASE_URL}",
        "127.0.0.1:9092,127.0.0.1:9093",
        "",
    ],
)
def test_what_has_none_is_accepted(text: str) -> None:
    refuse_secret("--database", text)


@pytest.mark.parametrize(
    ("name", "value"),
    [("tokens", "5"), ("token_separator", ","), ("key", "word"), ("password", "${X}"), ("secret", "")],
)
def test_pairs_that_are_no_secrets(name: str, value: str) -> None:
    refuse_secret_pair("-p", name, value)


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
        'database_file = "url"\nredis = "redis://:${ONE}@host/0"\nstate_databases = ["mysql://me:${ONE}@h/x"]\n'
    )
    (tmp_path / "url").write_text("postgresql://me:${ONE}@db/x\n")
    monkeypatch.setenv("TXSTREAM_SCHEMA_REGISTRY", "https://me:${ONE}@host")
    found = Settings().resolve_given(tmp_path)
    assert found.database == "postgresql://me:a%2Fb@db/x"
    assert found.redis == "redis://:a%2Fb@host/0"
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
        redis="redis://:hush@host/0",
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
    with pytest.raises(UsageError, match="-p password is a secret"):
        Comparing(Settings(data_dir=tmp_path)).words_of({"parameters": ["password=hush"]})
