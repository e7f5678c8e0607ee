"""Who we are to ZooKeeper: what goes together, where it comes from, and that it is never shown."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from kazoo.protocol.serialization import SASL, Auth
from support.lists import each

from txstream.core.errors import UsageError
from txstream.settings import Settings
from txstream.settings.zookeeper_access import ZooKeeperAccess
from txstream.zookeeper import ZooKeeper


@each(
    ("given", "why"),
    [
        ({"auth": "kerberos"}, "it is 'digest' or 'sasl'"),
        ({"user": "me"}, "--zookeeper-auth"),
        ({"auth": "digest", "user": "me"}, "TXSTREAM_ZOOKEEPER_PASSWORD"),
        ({"auth": "digest", "user": "m:e", "password": "x"}, "colon"),
        ({"tls_certificate": "a.pem"}, "--zookeeper-tls-key"),
        ({"tls_ca": "no-such.pem"}, "no-such.pem: there is no such file"),
        ({"tls_certificate": __file__, "tls_key": __file__}, "needs --zookeeper-tls-ca"),
    ],
)
def test_what_does_not_go_together(given: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        ZooKeeperAccess(**given)


def test_sasl_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"txstream\[sasl\]"):
        ZooKeeperAccess("sasl", "me", "x")


def test_secrets_come_from_files_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zk").write_text("from-a-file\n")
    (tmp_path / "url").write_text("postgresql://me:from-a-file@db/results\n")
    named = Settings(zookeeper_password_file=str(tmp_path / "zk"), database_file=str(tmp_path / "url"))
    monkeypatch.setenv("TXSTREAM_ZOOKEEPER_PASSWORD", "from-the-environment")
    monkeypatch.setenv("TXSTREAM_DATABASE", "sqlite:///environment.db")
    found = named.resolve_given(tmp_path)
    assert found.zookeeper_password == "from-a-file"
    assert found.database == "postgresql://me:from-a-file@db/results"
    assert found.resolve_given(tmp_path) == found
    found = Settings().resolve_given(tmp_path)
    assert found.zookeeper_password == "from-the-environment"
    assert found.database == "sqlite:///environment.db"
    monkeypatch.delenv("TXSTREAM_ZOOKEEPER_PASSWORD")
    monkeypatch.delenv("TXSTREAM_DATABASE")
    (tmp_path / "txstream.toml").write_text(
        f'zookeeper_password_file = "{tmp_path / "zk"}"\ndatabase_file = "{tmp_path / "url"}"\n'
    )
    found = Settings().resolve_given(tmp_path)
    assert found.zookeeper_password == "from-a-file"
    assert found.database == "postgresql://me:from-a-file@db/results"
    assert "from-a-file" not in repr(found)


@pytest.mark.parametrize("text", [None, "", "\n"])
def test_a_file_without_its_secret(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "secret"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=r"zookeeper_password_file .*secret"):
        Settings(zookeeper_password_file=str(file)).resolve_given(tmp_path)


def test_a_password_is_no_key_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "txstream.toml").write_text('zookeeper_password = "x"\n')
    with pytest.raises(UsageError, match="unknown settings zookeeper_password"):
        Settings().resolve_given(tmp_path)


def test_it_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    access = ZooKeeperAccess("digest", "me", "hush-hush")
    shown = [repr(access), repr(ZooKeeper("127.0.0.1:1", access=access)), access.shown]
    assert "hush" not in "".join(shown)
    with caplog.at_level(logging.DEBUG, logger="kazoo.client"):
        logger = logging.getLogger("kazoo.client")
        logger.debug("Sending request(xid=%s): %s", -4, Auth(0, "digest", "me:hush-hush"))
        logger.debug("Sending request(xid=%s): %s", 1, SASL(b"hush-hush"))
    assert len(caplog.records) == 2
    assert "hush" not in caplog.text
    assert "<Auth>" in caplog.text
