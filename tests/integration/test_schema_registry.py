"""Values with schema ids, read by way of a registry: what is asked for, kept, waited for and refused."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fastavro
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.lists import each
from support.schema_registry import FakeRegistry

from txstream.api.spouts import SpoutContext
from txstream.core.errors import (
    InputChangedError,
    SchemaError,
    ServiceUnavailableError,
    TopologyError,
    UsageError,
)
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.engine.batch.executor_failures import describe
from txstream.engine.letters.retry_policy import Verdict, judge, may_be_a_record
from txstream.plugins.formats.registered_values import RegisteredFormat, RegisteredReader
from txstream.plugins.formats.schema_registry import SchemaRegistry, UnknownSchemaError
from txstream.spouts.formats.unfit_values import BadValueError, refuse_first
from txstream.spouts.kafka import Decode, KafkaSource
from txstream.spouts.kafka.columns import readers

PASSWORD = "pa/ss@word"


def order(*fields: tuple[str, Any], **defaults: Any) -> dict[str, Any]:
    """A record of these fields, some with defaults."""
    made = [
        {"name": name, "type": kind, **({"default": defaults[name]} if name in defaults else {})}
        for name, kind in fields
    ]
    return {"type": "record", "name": "Order", "fields": made}


OLD = order(("id", "int"), ("user", "string"))
NEW = order(("id", "long"), ("user", "string"), ("note", ["null", "string"]), note=None)
READER = order(("id", "long"), ("note", ["null", "string"]), note=None)


def encoded(schema_id: int, schema: Any, value: Any) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4, "big") + data.getvalue()


def reader_of(registry: str, schema: Any = READER, **options: Any) -> Callable[[list[bytes | None]], Any]:
    addresses = {"schema_registry": registry, **options}
    source = KafkaSource("orders", decode=Decode("avro", schema))
    read = readers(source, SpoutContext("t", "orders", addresses, 2.0, 2.0)).value
    assert read is not None

    def columns(values: list[bytes | None]) -> Any:
        found, unfit = read(values)
        refuse_first(unfit)
        return [column.to_pylist() for column in found]

    return columns


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry(login=f"me:{PASSWORD}") as running:
        yield running


def url_of(registry: FakeRegistry) -> str:
    return registry.url.replace("://", "://me:pa%2Fss%40word@")


def test_each_value_is_read_by_the_schema_that_it_was_written_with(registry: FakeRegistry) -> None:
    """An id is asked for once in a process, and never again, also when the registry is away by then."""
    old, new = registry.add("orders-value", json.dumps(OLD)), registry.add("orders-value", json.dumps(NEW))
    values = [
        encoded(new, NEW, {"id": 1, "user": "ann", "note": "x"}),
        None,
        encoded(old, OLD, {"id": 2, "user": "bob"}),
        encoded(new, NEW, {"id": 3, "user": "eve", "note": None}),
    ]
    read = reader_of(url_of(registry))
    expected = [[1, None, 2, 3], ["x", None, None, None]]
    assert read(values) == expected
    assert sorted(registry.requests) == [f"/schemas/ids/{old}", f"/schemas/ids/{new}"]
    registry.stop()
    assert read(values) == expected
    assert reader_of(url_of(registry))(values) == expected, "another source of this process asks again"
    assert reader_of(url_of(registry))([None, None]) == [[None, None], [None, None]]
    assert reader_of(url_of(registry))([]) == [[], []]


def test_a_change_that_cannot_be_resolved_names_schema_subject_and_both_fields(
    registry: FakeRegistry,
) -> None:
    wrong = order(("id", "string"))
    registry.add("orders-value", json.dumps(OLD))
    other = registry.add("orders-value", json.dumps(wrong))
    good = encoded(1, OLD, {"id": 1, "user": "ann"})
    with pytest.raises(BadValueError) as caught:
        reader_of(url_of(registry))([good, encoded(other, wrong, {"id": "x"}), good])
    assert caught.value.row == 1
    assert caught.value.reason == (
        f"schema {other} (subject 'orders-value', version 2): field 'id' is string in the writer's schema, "
        "long in the topology's"
    )


def test_the_first_bad_value_is_named_whatever_its_schema(registry: FakeRegistry) -> None:
    registry.add("orders-value", json.dumps(OLD))
    proto = registry.add("other-value", "message Order {}", "PROTOBUF")
    good = encoded(1, OLD, {"id": 1, "user": "ann"})
    read = reader_of(url_of(registry))
    for bad, reason in (
        (b"\1\0\0\0\1x", "it has no schema id: it does not begin with a zero byte"),
        (b"", "it has no schema id"),
        (good[:-1], "it is no such Avro value: Expected 3 bytes, read 2"),
        (good + b"!", "bytes are left over behind it: 1"),
        (
            b"\0" + proto.to_bytes(4, "big"),
            f"schema {proto} (subject 'other-value', version 1): it is of type PROTOBUF, the topology "
            f"reads AVRO",
        ),
    ):
        with pytest.raises(BadValueError) as caught:
            read([good, good, bad, good[:-2]])
        assert (caught.value.row, caught.value.reason[: len(reason)]) == (2, reason)


def test_the_registry_away_is_an_outage_and_it_is_asked_again(registry: FakeRegistry) -> None:
    schema_id = registry.add("orders-value", json.dumps(OLD))
    value = encoded(schema_id, OLD, {"id": 1, "user": "ann"})
    read = reader_of(url_of(registry))
    registry.stop()
    with pytest.raises(
        ServiceUnavailableError, match=f"^the schema registry at {registry.url} does not answer: "
    ):
        read([value])
    registry.start()
    for status in (500, 503, 429):
        registry.status = status
        with pytest.raises(
            ServiceUnavailableError, match=f"cannot answer now .HTTP {status}: .*as the test wants"
        ):
            read([value])
    registry.status, away = 404, f"/schemas/ids/{schema_id} is answered by no schema registry now .HTTP 404"
    for registry.page in (None, b"default backend - 404", b"<html>", b'["no"]', b'{"error_code": 1}'):
        with pytest.raises(ServiceUnavailableError, match=away):
            read([value])
    registry.page = b"default backend - 404"
    with pytest.raises(ServiceUnavailableError, match="is answered by no schema registry now"):
        SchemaRegistry(url_of(registry)).check(2)
    registry.status = registry.page = None
    assert read([value]) == [[1], [None]]


class Clock:
    """Time that passes only while somebody pauses."""

    def __init__(self, then: Callable[[], object] = lambda: None, at: float = 4.0) -> None:
        self.now, self._then, self._at = 0.0, then, at

    def read(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self._at:
            self._then()


def test_a_schema_that_the_registry_does_not_have_is_asked_for_again(registry: FakeRegistry) -> None:
    late = Clock(lambda: registry.add("orders-value", json.dumps(OLD)))
    client = SchemaRegistry(url_of(registry), clock=late.read, pause=late.pause)
    assert client.schema(1).text == json.dumps(OLD)
    assert 4 <= late.now < 10
    never = Clock()
    client = SchemaRegistry(url_of(registry), clock=never.read, pause=never.pause)
    words = f"^schema 99 is not in {re.escape(client.shown)}, which was asked for it for 10 s"
    with pytest.raises(UnknownSchemaError, match=words) as unknown:
        client.schema(99)
    assert 4 < never.now <= 10
    waited = never.now
    with pytest.raises(UnknownSchemaError, match=words):
        client.schema(99)
    assert never.now == waited, "a search in a batch asks many times"
    on_driver = describe(unknown.value, "orders", 0).to_error(TransactionAttempt(Txid(1), AttemptId(1)))
    assert judge(on_driver) is Verdict.FATAL
    assert not may_be_a_record(on_driver), "a good record would become a dead letter"


def test_a_few_values_that_look_like_an_id_are_bad_and_many_are_the_registrys_matter(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txstream.plugins.formats.schema_registry._UNKNOWN_SECONDS", 0.0)
    registry.add("orders-value", json.dumps(OLD))
    good, garbage = encoded(1, OLD, {"id": 1, "user": "ann"}), b"\0\0\0\0\x63x"
    read = reader_of(url_of(registry))
    unknown = r"^schema 99 is not in the schema registry at "
    for alone in ([garbage], [garbage] * 11, [garbage, b"nothing"]):
        with pytest.raises(UnknownSchemaError, match=unknown):
            read(alone)  # type: ignore[arg-type]
    for others in ([good], [good, *[garbage] * 9], []):  # the last: by itself, as a dead letter is tried
        with pytest.raises(BadValueError, match=unknown) as bad:
            read([*others, garbage])
        assert bad.value.row == min(1, len(others))
        assert bad.value.reason.endswith("; or it only looks as if it began with an id")
    with pytest.raises(UnknownSchemaError, match=unknown):
        read([good, *[garbage] * 11])


def test_garbage_with_several_ids_is_waited_for_once(registry: FakeRegistry) -> None:
    registry.add("orders-value", json.dumps(OLD))
    clock = Clock()
    client = SchemaRegistry(url_of(registry), clock=clock.read, pause=clock.pause)
    source = KafkaSource("orders", decode=Decode("avro", READER))
    assert isinstance(source.value_schema, RegisteredFormat)
    reader = RegisteredReader(source.value_schema, lambda: client)
    good = encoded(1, OLD, {"id": 1, "user": "ann"})
    _, unfit = reader.read_fit([good, *(b"\0\0\0\x01%cx" % at for at in range(6))])
    assert sorted(unfit) == [1, 2, 3, 4, 5, 6]
    assert 4 < clock.now <= 10


def test_what_was_read_by_is_told_with_a_fingerprint(registry: FakeRegistry) -> None:
    """By id, for what was used since the last call; blanks in a text do not count."""
    source = KafkaSource("orders", decode=Decode("avro", READER))
    prints = []
    for text in (json.dumps(OLD), json.dumps(OLD, indent=2), json.dumps(NEW)):
        with FakeRegistry() as one:
            one.add("orders-value", text)
            made = readers(source, SpoutContext("t", "orders", {"schema_registry": one.url}, 2.0, 2.0))
            assert made.value is not None
            assert made.take_fetched() == {}
            made.value([encoded(1, OLD, {"id": 1, "user": "ann"}), None])
            found = made.take_fetched()
            assert list(found) == ["schema 1"]
            assert made.take_fetched() == {}
            prints.append(found["schema 1"])
    assert prints[0] == prints[1] != prints[2]
    registry.add("orders-value", json.dumps(order(("id", "string"))))
    made = readers(source, SpoutContext("t", "orders", {"schema_registry": url_of(registry)}, 2.0, 2.0))
    assert made.value is not None
    made.know({"schema 1": prints[0]})
    with pytest.raises(InputChangedError, match=f"schema 1 had the fingerprint {prints[0]} and has "):
        made.value([encoded(1, OLD, {"id": 1, "user": "ann"})])


def test_credentials_are_sent_and_never_shown(
    registry: FakeRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    client = SchemaRegistry(url_of(registry))
    client.check(5)
    registry.stop()
    told = []
    with pytest.raises(ServiceUnavailableError) as away:
        client.check(5)
    told.append(str(away.value))
    registry.start()
    for wrong in (registry.url, registry.url.replace("://", "://me:wr0ng@")):
        with pytest.raises(
            UsageError, match=r"refuses to answer \(HTTP 401\); give user and password"
        ) as refused:
            SchemaRegistry(wrong).check(5)
        told.append(str(refused.value))
    for url in (f"ftp://me:{PASSWORD}@host", f"http://me:{PASSWORD}@", "http://me:wr0ng@host:port", "here"):
        with pytest.raises(UsageError, match="is not a URL such as") as caught:
            SchemaRegistry(url)
        told.append(str(caught.value))
    context = SpoutContext("t", "orders", {"schema_registry": url_of(registry)})
    source = KafkaSource("orders", decode=Decode("avro", READER, schema_registry=url_of(registry)))
    shown = " ".join([*told, caplog.text, repr(context), repr(source), repr(vars(client))])
    for secret in (PASSWORD, "pa%2Fss%40word", "wr0ng"):
        assert secret not in shown.replace(repr(client._pool.headers), "")


def test_what_is_no_registry_and_no_address_is_refused(registry: FakeRegistry) -> None:
    registry.status = 302
    with pytest.raises(UsageError, match=r"/schemas/ids/1 is no answer of a schema registry \(HTTP 302"):
        SchemaRegistry(registry.url).schema(1)
    source = KafkaSource("orders", "127.0.0.1:1", decode=Decode("avro", READER))
    with pytest.raises(
        UsageError, match=r"^no schema registry for the topic 'orders'; give --schema-registry URL"
    ):
        source.coordinator(SpoutContext("t", "orders", {}))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    folder: Path = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    import ipaddress

    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(*pem))
    return str(folder / "ca.pem"), str(folder / "key.pem")


def test_tls_with_an_authority_of_ones_own(certificate: tuple[str, str], tmp_path: Path) -> None:
    with FakeRegistry(certificate=certificate) as registry:
        schema_id = registry.add("orders-value", json.dumps(OLD))
        value = encoded(schema_id, OLD, {"id": 1, "user": "ann"})
        read = reader_of(registry.url, schema_registry_ca=certificate[0])
        assert read([value]) == [[1], [None]]
        with pytest.raises(UsageError, match=r"is not trusted: .*TXSTREAM_SCHEMA_REGISTRY_CA"):
            reader_of(registry.url)([value])
        broken = tmp_path / "broken.pem"
        broken.write_text("no certificate", encoding="utf-8")
        for path in (str(broken), str(tmp_path / "nowhere.pem")):
            with pytest.raises(UsageError, match="cannot be read as certificates in PEM"):
                reader_of(registry.url, schema_registry_ca=path)([value])


def test_schemas_that_import_others(registry: FakeRegistry) -> None:
    address = {"type": "record", "name": "Address", "fields": [{"name": "zip", "type": "string"}]}
    registry.add("address", json.dumps(address))
    schema_id = registry.add(
        "orders-value",
        json.dumps(order(("home", "Address"))),
        references=[{"name": "Address", "subject": "address", "version": 1}],
    )
    value = encoded(schema_id, order(("home", address)), {"home": {"zip": "8000"}})
    assert reader_of(url_of(registry), order(("home", address)))([value]) == [[{"zip": "8000"}]]


@each(
    ("options", "error", "words"),
    [
        ({"decode": Decode("avro")}, SchemaError, "'avro' needs schema: an Avro schema is given as"),
        ({"decode": Decode("avro", "nowhere.avsc")}, SchemaError, "'nowhere.avsc' cannot be read"),
        ({"decode": Decode("avro", '"string"')}, SchemaError, "of a record, and this is string"),
        ({"decode": Decode("avro", READER), "kafka_columns": ["value"]}, SchemaError, "'avro' reads"),
        ({"decode": Decode(key_format="avro")}, SchemaError, "'avro' needs key_schema"),
        ({"decode": Decode(key_schema=READER)}, SchemaError, "key_schema goes with a format that has fields"),
        ({"decode": Decode("json", "id int", key_format="avro", key_schema=READER)},
         SchemaError, "kafka_columns does not have 'key'"),
        ({"decode": Decode(schema_registry="http://a")}, TopologyError, "schema_registry goes with formats"),
        ({"decode": Decode("avro", READER, wire_format="plain", schema_registry="http://a")},
         TopologyError, "leave schema_registry out"),
        ({"decode": Decode(wire_format="thrift")},  # type: ignore[arg-type]
         TopologyError, "wire_format is 'thrift'"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_meant(options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        KafkaSource("orders", **options)
