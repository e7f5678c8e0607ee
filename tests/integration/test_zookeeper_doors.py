"""A ZooKeeper that asks who we are: digest, SASL, TLS, and znodes that are closed to others.

What the server keeps from others is asked with kazoo's own client, which has no part in how we log in.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import CREATOR_ALL_ACL

from txstream import OpaqueSpout, SqlState, SqlStateBolt, TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.cli.main import main
from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.engine.run import start
from txstream.plugins.doctor.checks import WrongError
from txstream.plugins.doctor.clocks import Clocks
from txstream.plugins.doctor.zookeeper_check import look_at_zookeeper
from txstream.plugins.local.embedded import EmbeddedZooKeeper, find_java
from txstream.plugins.local.embedded.ports import HOST, free_port
from txstream.plugins.local.local_runner import InProcessRunner
from txstream.settings import Settings
from txstream.settings.zookeeper_access import ZooKeeperAccess
from txstream.spouts.memory import MemorySpout
from txstream.zookeeper import ZooKeeper

SECRET = "correct-horse"
ME = ZooKeeperAccess("sasl", "me", SECRET)


@dataclass(frozen=True)
class Doors:
    """A server's open port and its port for TLS; the certificate that it shows there, and another one."""

    plain: str
    secure: str
    certificate: Path
    other: Path


def certificate(folder: Path, name: str) -> Path:
    keytool = str(find_java().path.resolve().with_name("keytool"))
    store = ["-alias", name, "-keystore", str(folder / f"{name}.p12"), "-storepass", SECRET]
    subject = ["-dname", f"CN={name}", "-ext", f"SAN=ip:{HOST}", "-validity", "2"]
    for command in (
        ["-genkeypair", *store, "-storetype", "PKCS12", "-keyalg", "EC", *subject],
        ["-exportcert", *store, "-rfc", "-file", str(folder / f"{name}.pem")],
    ):
        subprocess.run([keytool, "-J-XX:TieredStopAtLevel=1", *command], check=True, capture_output=True)
    return folder / f"{name}.pem"


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    folder = tmp_path_factory.mktemp("doors")
    shown, other = certificate(folder, "server"), certificate(folder, "other")
    jaas = folder / "jaas.conf"
    jaas.write_text(
        "Server { org.apache.zookeeper.server.auth.DigestLoginModule required "
        f'user_me="{SECRET}" user_you="battery-staple"; }};'
    )
    secure = free_port()
    overrides = {
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": str(secure),
        "secureClientPortAddress": HOST,
        "ssl.keyStore.location": str(folder / "server.p12"),
        "ssl.keyStore.password": SECRET,
        "ssl.trustStore.location": str(other),
        "ssl.clientAuth": "none",
    }
    options = [f"-Djava.security.auth.login.config={jaas}"]
    with EmbeddedZooKeeper(folder, overrides=overrides, java_options=options) as server:
        yield Doors(server.address, f"{HOST}:{secure}", shown, other)


def key_of(certificate: Path) -> Path:
    """Return a file with the key of a certificate that `certificate` has made, as PEM."""
    store = certificate.with_suffix(".p12").read_bytes()
    key, _, _ = pkcs12.load_key_and_certificates(store, SECRET.encode())
    assert key is not None
    file = certificate.with_suffix(".key")
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return file


@dataclass(frozen=True)
class Mutual:
    """A server's port for TLS that lets in nobody without a certificate; its own one, the one that it knows,
    and one that it does not know."""

    address: str
    ca: Path
    known: Path
    unknown: Path


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mutual]:
    folder = tmp_path_factory.mktemp("mutual")
    shown, known, unknown = (certificate(folder, name) for name in ("server", "driver", "stranger"))
    secure = free_port()
    overrides = {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": str(secure),
        "secureClientPortAddress": HOST,
        "ssl.keyStore.location": str(folder / "server.p12"),
        "ssl.keyStore.password": SECRET,
        "ssl.trustStore.location": str(known),
        "ssl.clientAuth": "need",
    }
    with EmbeddedZooKeeper(folder, overrides=overrides):
        yield Mutual(f"{HOST}:{secure}", shown, known, unknown)


@contextlib.contextmanager
def others(address: str, **options: Any) -> Iterator[Any]:
    client = KazooClient(address, **options)
    client.start(timeout=30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def walk(client: Any, path: str) -> Iterator[str]:
    yield path
    for name in client.get_children(path):
        yield from walk(client, f"{path}/{name}")


@pytest.mark.parametrize("access", [ME, ZooKeeperAccess("digest", "me", SECRET)], ids=["sasl", "digest"])
def test_znodes_are_closed_to_others(doors: Doors, unique: str, access: ZooKeeperAccess) -> None:
    with ZooKeeper(f"{doors.plain}/{unique}", access=access) as zookeeper:
        zookeeper.tree().ensure(f"{zookeeper.root}/words/coordinator")
        assert zookeeper.topologies() == ["words"]
    path = f"/{unique}/txstream/topologies/words"
    strangers: list[dict[str, Any]] = [
        {},
        {"auth_data": [("digest", "me:wrong-horse")]},
        {"sasl_options": {"mechanism": "DIGEST-MD5", "username": "you", "password": "battery-staple"}},
    ]
    for options in strangers:
        with others(doors.plain, **options) as client:
            acts: list[Callable[[], Any]] = [
                partial(client.get, path),
                partial(client.get_children, path),
                partial(client.set, path, b"mine"),
                partial(client.create, f"{path}/mine", b""),
                partial(client.delete, f"{path}/coordinator"),
                partial(client.get, f"/{unique}"),
            ]
            for act in acts:
                with pytest.raises(NoAuthError):
                    act()
    with ZooKeeper(f"{doors.plain}/{unique}", access=access) as zookeeper:
        assert zookeeper.topologies() == ["words"]
        assert zookeeper.delete_topology("words")
        assert zookeeper.topologies() == []


@pytest.mark.parametrize(
    ("access", "why"),
    [
        (ZooKeeperAccess("sasl", "me", "wrong-horse"), "refuses sasl user 'me'"),
        (ZooKeeperAccess("digest", "me", "wrong-horse"), "does not allow digest user 'me'"),
        (ZooKeeperAccess(), "does not allow nobody"),
    ],
    ids=["sasl", "digest", "nobody"],
)
def test_wrong_credentials_are_said_and_not_shown(
    doors: Doors, unique: str, access: ZooKeeperAccess, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    owner = ME if access.auth != "digest" else ZooKeeperAccess("digest", "me", SECRET)
    with ZooKeeper(f"{doors.plain}/{unique}", access=owner):
        pass
    zookeeper = ZooKeeper(f"{doors.plain}/{unique}", access=access)
    with caplog.at_level("DEBUG"), pytest.raises(ServiceUnavailableError, match=why) as caught:
        zookeeper.start()
    assert "--zookeeper-password-file" in str(caught.value)
    assert "horse" not in str(caught.value) + caplog.text


def test_tls(doors: Doors, unique: str) -> None:
    access = ZooKeeperAccess("digest", "me", SECRET, tls_ca=str(doors.certificate))
    with ZooKeeper(f"{doors.secure}/{unique}", access=access) as zookeeper:
        assert zookeeper.topologies() == []
    # Neither a server that we do not trust nor one that shows another name is talked to.
    wrong = ZooKeeperAccess("digest", "me", SECRET, tls_ca=str(doors.other))
    with pytest.raises(ServiceUnavailableError, match=r"certificate verify failed.*--zookeeper-tls-ca"):
        ZooKeeper(doors.secure, access=wrong, connect_timeout_seconds=3.0).start()
    name = doors.secure.replace(HOST, "localhost")
    with pytest.raises(ServiceUnavailableError, match="certificate verify failed"):
        ZooKeeper(name, access=access, connect_timeout_seconds=3.0).start()


@pytest.mark.soak
def test_a_server_that_wants_a_certificate(mutual: Mutual, unique: str, tmp_path: Path) -> None:
    mine = [
        "--zookeeper-tls-certificate",
        str(mutual.known),
        "--zookeeper-tls-key",
        str(key_of(mutual.known)),
    ]
    where = ["--zookeeper", f"{mutual.address}/{unique}", "--zookeeper-tls-ca", str(mutual.ca), "--json"]
    where += ["--data-dir", str(tmp_path), "--connect-timeout", "5"]
    assert main(["topologies", *where, *mine]) == 0
    access = ZooKeeperAccess(
        "digest", "me", SECRET, str(mutual.ca), str(mutual.known), str(key_of(mutual.known))
    )
    with ZooKeeper(f"{mutual.address}/{unique}-mine", access=access) as zookeeper:
        zookeeper.tree().ensure(f"{zookeeper.root}/words/coordinator")
    tls = {"use_ssl": True, "ca": str(mutual.ca), "check_hostname": True}
    tls |= {"certfile": str(mutual.known), "keyfile": str(key_of(mutual.known))}
    with others(mutual.address, **tls) as client:
        acls, _ = client.get_acls(f"/{unique}-mine/txstream/topologies/words")
        schemes = {acl.id.scheme for acl in acls}
        assert schemes == {"digest", "x509"}, "the certificate is an identity, too"
        assert client.get_children(f"/{unique}/txstream") == ["topologies"]


@pytest.mark.soak
def test_a_client_without_the_right_certificate_is_told_so(
    mutual: Mutual, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--zookeeper", f"{mutual.address}/{unique}", "--zookeeper-tls-ca", str(mutual.ca)]
    where += ["--data-dir", str(tmp_path), "--connect-timeout", "3"]
    strange = ["--zookeeper-tls-certificate", str(mutual.unknown)]
    strange += ["--zookeeper-tls-key", str(key_of(mutual.unknown))]
    wanted = "the server wants a certificate of ours, and none was given"
    not_accepted = f"the server does not accept our certificate {mutual.unknown}"
    for more, why in (([], wanted), (strange, not_accepted)):
        assert main(["topologies", *where, *more]) == 1
        told = capsys.readouterr().err
        assert why in told
        assert "--zookeeper-tls-certificate" in told
        assert "Traceback" not in told
    settings = Settings(
        zookeeper=mutual.address, zookeeper_tls_ca=str(mutual.ca), connect_timeout_seconds=3.0
    )
    with pytest.raises(ServiceUnavailableError, match=wanted):
        look_at_zookeeper(settings, Clocks())
    raw = ssl.create_default_context(cafile=str(mutual.ca))
    host, _, port = mutual.address.partition(":")
    with (
        pytest.raises(ssl.SSLError, match="CERTIFICATE"),
        socket.create_connection((host, int(port)), 10) as plain,
        raw.wrap_socket(plain, server_hostname=host) as protected,
    ):
        protected.recv(1)


def test_files_that_do_not_belong_together_are_refused_before_anything_is_asked(mutual: Mutual) -> None:
    key = key_of(mutual.unknown)
    with pytest.raises(UsageError, match="KEY_VALUES_MISMATCH"):
        ZooKeeperAccess(tls_ca=str(mutual.ca), tls_certificate=str(mutual.known), tls_key=str(key))
    with pytest.raises(UsageError, match=r"--zookeeper-tls-ca .* cannot be used"):
        ZooKeeperAccess(tls_ca=str(key))
    closed = key.with_suffix(".closed")
    plain = load_pem_private_key(key.read_bytes(), None)
    closed.write_bytes(
        plain.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(SECRET.encode()))
    )
    with pytest.raises(UsageError, match=r"is encrypted; .*openssl pkey -in"):
        ZooKeeperAccess(tls_ca=str(mutual.ca), tls_certificate=str(mutual.unknown), tls_key=str(closed))


def test_a_run_behind_the_doors(doors: Doors, unique: str, sqlite_url: str, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text(f"{SECRET}\n")
    settings = Settings(
        zookeeper=f"{doors.secure}/{unique}",
        database=sqlite_url,
        data_dir=tmp_path,
        zookeeper_auth="sasl",
        zookeeper_user="me",
        zookeeper_password_file=str(password),
        zookeeper_tls_ca=str(doors.certificate),
    )
    with MemorySpout("word string", {"p0": ["a", "b", "a"]}) as words:
        builder = TransactionalTopologyBuilder("doors", "words", OpaqueSpout(words))
        state = SqlState("doors", key="word string", value="n bigint")
        builder.set_committer_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("words", "word")
        run = start(builder.build(), settings=settings, until="caught-up", runner_factory=InProcessRunner)
        report = run.wait(120)
    assert report.records == 3
    found = look_at_zookeeper(settings.resolve(tmp_path), Clocks())
    assert "sasl user 'me'" in found
    with others(doors.plain) as client, pytest.raises(NoAuthError):
        client.get(f"/{unique}/txstream/topologies/doors/identity")
    login = {"mechanism": "DIGEST-MD5", "username": "me", "password": SECRET}
    with others(doors.plain, sasl_options=login) as client:
        closed = list(walk(client, f"/{unique}"))
        assert {path.rpartition("/")[2] for path in closed} >= {"identity", "epoch", "current", "leader"}
        for path in closed:
            assert [(one.id.scheme, one.id.id) for one in client.get_acls(path)[0]] == [("sasl", "me")], path


def test_doctor_finds_a_root_that_is_open_to_all(doors: Doors, unique: str, tmp_path: Path) -> None:
    with ZooKeeper(f"{doors.plain}/{unique}"):
        pass
    settings = Settings(
        zookeeper=f"{doors.plain}/{unique}",
        zookeeper_auth="digest",
        zookeeper_user="me",
        zookeeper_password=SECRET,
    ).resolve(tmp_path)
    with pytest.raises(WrongError, match="everybody may use") as caught:
        look_at_zookeeper(settings, Clocks())
    assert "setAcl -R" in caught.value.remedy
    with others(doors.plain, auth_data=[("digest", f"me:{SECRET}")]) as client:
        client.set_acls(f"/{unique}/txstream/topologies", CREATOR_ALL_ACL)
    assert "digest user 'me'" in look_at_zookeeper(settings, Clocks())
