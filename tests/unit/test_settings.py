"""Settings: the first value found wins, and values that make no sense are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.lists import each

from txstream.core.errors import UsageError
from txstream.plugins.local import embedded
from txstream.settings import SETTINGS_FILE, Settings

NAMES = ("zookeeper", "kafka", "database", "master", "schema_registry", "schema_registry_ca")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*NAMES, "standby"):
        monkeypatch.delenv(f"TXSTREAM_{name.upper()}", raising=False)
    monkeypatch.chdir(tmp_path)


def write_file(text: str) -> None:
    Path(SETTINGS_FILE).write_text(text, encoding="utf-8")


def run_services(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    found = {"zookeeper": "127.0.0.1:1", "kafka": "127.0.0.1:2"}
    monkeypatch.setattr(embedded, "living", lambda folder: found if folder == data_dir else {})


@pytest.mark.parametrize("name", NAMES)
def test_flag_then_environment_then_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(f'{name} = "from-file"')
    assert getattr(Settings().resolve(), name) == "from-file"
    monkeypatch.setenv(f"TXSTREAM_{name.upper()}", "from-environment")
    assert getattr(Settings().resolve(), name) == "from-environment"
    given = Settings(**{name: "from-flag"})  # type: ignore[arg-type]
    assert getattr(given.resolve(), name) == "from-flag"


def test_what_a_standby_has_ready_is_a_setting_like_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().resolve().standby is None
    write_file('standby = "cold"')
    assert Settings().resolve().standby == "cold"
    assert Settings(standby="warm").resolve().standby == "warm"
    monkeypatch.setenv("TXSTREAM_STANDBY", "hot")
    with pytest.raises(
        UsageError, match=r"standby is 'hot'; it is 'cold' or 'warm' \(--standby, TXSTREAM_STANDBY"
    ):
        Settings().resolve()


def test_embedded_services_come_last_and_each_address_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    data_dir = Path("data")
    run_services(monkeypatch, data_dir)
    found = Settings(data_dir=data_dir).resolve()
    assert (found.zookeeper, found.kafka) == ("127.0.0.1:1", "127.0.0.1:2")
    write_file('kafka = "file:9092"')
    found = Settings(data_dir=data_dir).resolve()
    assert (found.zookeeper, found.kafka) == ("127.0.0.1:1", "file:9092")
    assert Settings().resolve().zookeeper is None, "another data directory's services are not ours"


def test_given_settings_leave_embedded_services_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run_services(monkeypatch, Path("data"))
    assert Settings(data_dir=Path("data")).resolve_given().kafka is None


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXSTREAM_KAFKA", "")
    write_file('kafka = "file:9092"')
    assert Settings().resolve().kafka == "file:9092"


def test_resolving_twice_changes_nothing() -> None:
    write_file('zookeeper = "z:1"\nmaster = "local[2]"')
    once = Settings().resolve()
    assert once.resolve() == once


@each(
    ("text", "words"),
    [
        ("zookeeper =", ["txstream.toml", "cannot be read"]),
        ('zoo = "z:1"', ["unknown", "zoo", "zookeeper, kafka, database, master, standby"]),
        ("kafka = 9092", ["kafka", "string", "int"]),
        ("[kafka]\nport = 1", ["kafka", "string"]),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(text: str, words: list[str]) -> None:
    write_file(text)
    with pytest.raises(UsageError) as refused:
        Settings().resolve()
    assert all(word in str(refused.value) for word in words)


def test_a_database_in_the_file_does_not_show_in_errors() -> None:
    write_file('database = ["postgresql://me:hunter2@host/db"]')
    with pytest.raises(UsageError) as refused:
        Settings().resolve()
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in repr(Settings(database="postgresql://me:hunter2@host/db"))


def test_a_file_that_is_a_folder_is_refused() -> None:
    Path(SETTINGS_FILE).mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        Settings().resolve()


def test_the_default_database_is_a_file_in_the_data_directory(tmp_path: Path) -> None:
    settings = Settings(data_dir=Path("data"))
    assert settings.uses_default_database
    assert settings.database_url() == f"sqlite:///{tmp_path}/data/state.db"
    assert not Settings(database="sqlite:///mine.db").uses_default_database


def test_missing_addresses_are_told_with_every_way_to_give_them() -> None:
    for name, require in (("zookeeper", Settings.require_zookeeper), ("kafka", Settings.require_kafka)):
        with pytest.raises(UsageError) as refused:
            require(Settings())
        for way in ("txstream up", f"--{name}", f"TXSTREAM_{name.upper()}", SETTINGS_FILE):
            assert way in str(refused.value)


@each("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_deadlines_are_positive_numbers(seconds: float) -> None:
    with pytest.raises(UsageError, match="connect_timeout_seconds"):
        Settings(connect_timeout_seconds=seconds)
