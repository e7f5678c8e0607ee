"""What a `KafkaSource` accepts, refuses, shows and ships."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from importlib.metadata import EntryPoint
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaConsumer
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl import SASL_MECHANISMS
from support.lists import each

from txstream.api.schema import parse_schema
from txstream.api.spouts import OpaqueSpout, SpoutContext
from txstream.core import entry_points
from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.errors import CorruptStateError, ServiceUnavailableError, TopologyError, UsageError
from txstream.spouts.kafka import Decode, KafkaOptions, KafkaRange, KafkaSource
from txstream.spouts.kafka.arguments import StartingOffset, epoch_milliseconds
from txstream.spouts.kafka.options import DNS_LOOKUPS, MECHANISMS, OWNED, PASSED_THROUGH

OBJECTS = {"topics": "lines", "decode": Decode("json", "offset bigint")}
CONTEXT = SpoutContext("counts", "lines", {"kafka": "broker:9092"})


def test_the_output_is_sparks_kafka_columns() -> None:
    expected = (
        "key binary, value string, topic string, partition int, offset bigint, timestamp timestamp, "
        "timestampType int, headers array<struct<key:string,value:binary>>"
    )
    assert pa.schema(KafkaSource("lines").output).equals(parse_schema(expected))
    typed = KafkaSource("lines", decode=Decode("binary", key_format="string")).output
    assert (typed.field("key").type, typed.field("value").type) == (pa.string(), pa.binary())
    assert OpaqueSpout(KafkaSource("lines")).output.equals(parse_schema(expected))


@each(
    ("arguments", "named"),
    [
        ({}, "either topics"),
        ({"topics": "lines", "topic_pattern": "lines.*"}, "either topics"),
        ({"topic_pattern": "orders-("}, "'orders-\\(' is not a regular expression: missing \\)"),
        ({"topic_pattern": ""}, "topic_pattern is ''"),
        ({"topics": "orders-*"}, "as topic_pattern="),
        ({"topics": []}, "at least one topic"),
        ({"topics": "no spaces"}, "'no spaces'"),
        ({"topics": "a/b"}, "'a/b'"),
        ({"topics": ".."}, "'..'"),
        ({"topics": ["lines", "lines"]}, "'lines' twice"),
        ({"topics": "lines", "max_records_per_partition": 0}, "max_records_per_partition is 0"),
        ({"topics": "lines", "isolation_level": "dirty"}, "isolation_level is 'dirty'"),
        ({"topics": "lines", "decode": Decode("xml")}, "value_format is 'xml'"),
        ({"topics": "lines", "decode": Decode("json")}, "needs schema: the fields"),
        ({"topics": "lines", "decode": Decode(schema="a int")}, "value_format is 'string'"),
        ({"topics": "lines", "decode": Decode("json", "a nothing")}, "unknown type 'nothing'"),
        ({"topics": "lines", "decode": Decode("json", "a map<int,int>")}, "'a' is map<int,int>"),
        ({"topics": "lines", "kafka_columns": ["valu"]}, "'valu'; known are key, value"),
        ({"topics": "lines", "kafka_columns": "value"}, "is the string 'value'"),
        ({"topics": "lines", "kafka_columns": ["key", "key"]}, "'key' twice"),
        ({"topics": "lines", "kafka_columns": []}, "kafka_columns is empty"),
        ({**OBJECTS, "kafka_columns": ["value"]}, "'value', which value_format='json' reads"),
        ({**OBJECTS, "kafka_columns": ["offset"]}, "'offset', which is a field of the schema too"),
        ({"topics": "lines", "decode": Decode(key_format="text")}, "key_format is 'text'"),
        ({"topics": "lines", "decode": Decode(errors="ignore")}, "errors is 'ignore'"),  # type: ignore[arg-type]
        ({"topics": "lines", "on_data_loss": "shrug"}, "on_data_loss is 'shrug'"),
        ({"topics": "lines", "client": KafkaOptions({}, 0)}, "partition_discovery_seconds is 0"),
        ({"topics": "lines", "start": "middle"}, "'middle'"),
        ({"topics": "lines", "start": {"lines": 3}}, "'lines'"),
        ({"topics": "lines", "start": {"others/0": 3}}, "'others/0'"),
        ({"topics": "lines", "start": {"lines/x": 3}}, "'lines/x'"),
        ({"topics": "lines", "start": {"lines/0": -2}}, "-2"),
        ({"topics": "lines", "start": {"lines/0": True}}, "True"),
        ({"topics": "lines", "start": {"*": 7}}, r"7 for '\*'"),
        ({"topics": "lines", "start": 1_700_000_000_000}, "1700000000000; it takes"),
        ({"topics": "lines", "start": datetime(2026, 11, 1)}, "no time zone; .*tzinfo=UTC"),
        (
            {"topics": "lines", "start": {"lines/0": datetime(2026, 11, 1)}},
            "'lines/0', which has no",
        ),
        ({"topics": "lines", "start": datetime(1969, 12, 31, tzinfo=UTC)}, "begin in 1970"),
        ({"topic_pattern": "l.*", "start": {"other/0": 3}}, "topics that match 'l\\.\\*'"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(TopologyError, match=named):
        KafkaSource(**arguments)


def test_former_names_of_arguments_mean_the_same_and_warn() -> None:
    with pytest.warns(
        DeprecationWarning,
        match=r"start=\.\.\., client=KafkaOptions\(options.*Decode\(value_format=\.\.\., schema=",
    ) as told:
        former = KafkaSource(
            "lines",
            starting_offsets="latest",
            value_format="json",
            schema="word string",
            client_options={"security_protocol": "SSL"},
        )
    assert told[0].filename == __file__
    now = KafkaSource(
        "lines",
        start="latest",
        decode=Decode("json", "word string"),
        client=KafkaOptions({"security_protocol": "SSL"}),
    )
    for name in ("starting_offsets", "schema", "client_options", "partition_discovery_seconds", "output"):
        assert getattr(former, name) == getattr(now, name)
    with pytest.raises(TypeError, match="unexpected keyword argument 'topic'"):
        KafkaSource("lines", topic="lines")  # type: ignore[call-arg]


def test_a_format_that_cannot_be_used_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    unseen = {"type": "record", "name": "NeverParsed", "fields": [{"name": "x", "type": "int"}]}
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "fastavro", None)
        with pytest.raises(UsageError, match=r"install 'txstream\[avro\]'"):
            KafkaSource("orders", decode=Decode("avro", unseen))
    group = entry_points.VALUE_FORMATS
    points = [EntryPoint("tsv", "there_is_no:Tsv [fast]", group), EntryPoint("odd", "builtins:repr", group)]
    monkeypatch.setattr(entry_points, "_points", lambda group: points)
    with pytest.raises(ServiceUnavailableError, match=r"'tsv' of a package .* 'a package\[fast\]'"):
        KafkaSource("orders", decode=Decode(key_format="tsv"))
    with pytest.raises(UsageError, match="'odd' answered with str, which is no ValueFormat"):
        KafkaSource("orders", decode=Decode("odd"))
    assert KafkaSource("orders", decode=Decode("json", "a int")).value_format == "json"


def test_a_pattern_matches_whole_names_and_nothing_internal() -> None:
    source = KafkaSource(topic_pattern="orders-[a-z]+|.*offsets")
    reads = source.selection.reads
    assert reads("orders-eu")
    assert not reads("orders-eu2")
    assert not reads("my-orders-eu")
    assert reads("offsets")
    assert not reads("__consumer_offsets")
    assert repr(source) == "KafkaSource(topic_pattern='orders-[a-z]+|.*offsets')"
    assert source.identity() == {"topic_pattern": "orders-[a-z]+|.*offsets"}


def test_a_moment_is_the_first_millisecond_not_before_it() -> None:
    begin = datetime(2026, 11, 21, 10, tzinfo=UTC)
    milliseconds = int(begin.timestamp()) * 1000
    assert epoch_milliseconds(begin) == milliseconds
    assert epoch_milliseconds(begin + timedelta(microseconds=1)) == milliseconds + 1
    assert epoch_milliseconds(begin + timedelta(microseconds=999)) == milliseconds + 1
    assert epoch_milliseconds(begin.astimezone(timezone(timedelta(hours=5, minutes=30)))) == milliseconds
    assert epoch_milliseconds(datetime(1970, 1, 1, tzinfo=UTC)) == 0


def test_the_output_of_json_values_is_the_schemas_and_the_columns_asked_for() -> None:
    alone = KafkaSource("lines", decode=Decode("json", "user string, n int"))
    assert pa.schema(alone.output).equals(parse_schema("user string, n int"))
    beside = KafkaSource(
        "lines",
        decode=Decode("json", "user string, n int"),
        kafka_columns=("offset", "key", "topic"),
    )
    assert pa.schema(beside.output).equals(
        parse_schema("user string, n int, offset bigint, key binary, topic string")
    )
    some = KafkaSource("lines", kafka_columns=["value", "partition"])
    assert pa.schema(some.output).equals(parse_schema("value string, partition int"))


def test_starts_always_have_an_entry_for_all_others() -> None:
    assert KafkaSource("lines").starting_offsets == {"*": "earliest"}
    assert KafkaSource("lines", start="latest").starting_offsets == {"*": "latest"}
    moment = datetime(2026, 11, 1, tzinfo=UTC)
    assert KafkaSource("lines", start=moment).starting_offsets == {"*": moment}
    per_partition: dict[str, StartingOffset] = {"lines/0": moment, "*": "latest"}
    assert KafkaSource("lines", start=per_partition).starting_offsets == per_partition
    assert KafkaSource(topic_pattern="l.*", start={"lines/0": 3}).starting_offsets["lines/0"] == 3
    mixed: dict[str, StartingOffset] = {"lines/0": 5, "lines/1": "latest"}
    assert KafkaSource("lines", start=mixed).starting_offsets == {**mixed, "*": "earliest"}


@each("option", sorted(OWNED))
def test_options_that_txstream_owns_are_refused_with_what_to_do(option: str) -> None:
    with pytest.raises(TopologyError, match=f"cannot set '{option}'"):
        KafkaSource("lines", client=KafkaOptions({option: "x"}))


def test_an_unknown_option_is_refused_with_a_guess() -> None:
    with pytest.raises(TopologyError, match="did you mean 'sasl_mechanism'"):
        KafkaSource("lines", client=KafkaOptions({"sasl_mechanim": "PLAIN"}))


def test_every_option_passed_through_is_one_of_kafka_pythons() -> None:
    assert set(KafkaConsumer.DEFAULT_CONFIG) >= PASSED_THROUGH
    assert set(OWNED) <= set(KafkaConsumer.DEFAULT_CONFIG)
    assert not PASSED_THROUGH & set(OWNED)


LOGIN = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "me",
    "sasl_plain_password": "hunter2",
}


@each(
    ("options", "named"),
    [
        ({"security_protocol": "FOO"}, "security_protocol .*'FOO'; it must be 'PLAINTEXT' or 'SSL' or"),
        ({"security_protocol": "sasl_ssl"}, "security_protocol .*'sasl_ssl'"),
        ({"security_protocol": None}, "security_protocol .*None"),
        ({**LOGIN, "sasl_mechanism": "SCRAM"}, "sasl_mechanism .*'SCRAM'; it must be .*'SCRAM-SHA-256'"),
        ({"security_protocol": "SASL_SSL"}, "sasl_mechanism .*None"),
        ({**LOGIN, "security_protocol": "SSL"}, "sasl_plain_password.* with security_protocol 'SSL'"),
        ({"sasl_mechanism": "PLAIN"}, "sasl_mechanism.* with security_protocol 'PLAINTEXT'; .*'SASL_SSL'"),
        ({"ssl_cafile": "ca.pem"}, "ssl_cafile.* with security_protocol 'PLAINTEXT'; .*'SSL'"),
        (
            {**LOGIN, "security_protocol": "SASL_PLAINTEXT", "ssl_check_hostname": True},
            "ssl_check_hostname.* with security_protocol 'SASL_PLAINTEXT'",
        ),
        (
            {"security_protocol": "SSL", "ssl_keyfile": "k", "ssl_password": "x"},
            "ssl_keyfile, ssl_password .*ssl_certfile",
        ),
        ({**LOGIN, "sasl_plain_password": None}, "'PLAIN' needs sasl_plain_password"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "needs sasl_oauth_token_prov"),
        ({"client_dns_lookup": "some"}, "client_dns_lookup .*'some'"),
        ({"reconnect_backoff_ms": "50"}, "reconnect_backoff_ms .*'50'; it must be a number"),
        ({"fetch_max_bytes": 0}, "fetch_max_bytes .*0; it must be a number"),
    ],
)
def test_values_that_kafka_python_would_pass_over_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(TopologyError, match=f"^client: .*{named}") as caught:
        KafkaSource("lines", client=KafkaOptions(options))
    assert "hunter2" not in str(caught.value)


def test_security_that_goes_together_is_accepted() -> None:
    for options in (
        LOGIN,
        {**LOGIN, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512"},
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI", "sasl_kerberos_service_name": "k"},
        {"security_protocol": "SSL", "ssl_cafile": None, "ssl_certfile": "c", "ssl_keyfile": "k"},
        {"security_protocol": "PLAINTEXT", "sasl_mechanism": None},
    ):
        assert KafkaSource("lines", client=KafkaOptions(options)).client_options == options


def test_the_values_accepted_are_kafka_pythons() -> None:
    assert set(MECHANISMS) == set(SASL_MECHANISMS)
    assert set(DNS_LOOKUPS) == set(KafkaConnectionManager._VALID_DNS_LOOKUP_MODES)


def test_a_password_is_never_shown() -> None:
    secret = {**LOGIN, "ssl_certfile": "me.pem", "ssl_password": "hunter2"}
    source = KafkaSource("lines", "broker:9092", client=KafkaOptions(secret))
    assert "hunter2" not in repr(source)
    assert "sasl_plain_password" in repr(source)
    with pytest.raises(TopologyError) as caught:
        KafkaSource("lines", client=KafkaOptions({"sasl_plain_pasword": "hunter2"}))
    assert "hunter2" not in str(caught.value)


def test_it_can_be_shipped() -> None:
    source = KafkaSource(["a", "b"], "x:1", client=KafkaOptions({"client_id": "me"}), start={"a/1": 4})
    again = pickle.loads(pickle.dumps(source))
    assert vars(again) == vars(source)
    objects = KafkaSource(topic_pattern="a.*", decode=Decode("json", "a int"))
    assert vars(pickle.loads(pickle.dumps(objects))) == vars(objects)
    assert again.identity() == {"topics": ["a", "b"]}


def test_the_address_is_the_sources_own_or_the_runs() -> None:
    assert KafkaSource("lines").address(CONTEXT) == "broker:9092"
    assert KafkaSource("lines", "other:1").address(CONTEXT) == "other:1"
    with pytest.raises(UsageError, match="--kafka"):
        KafkaSource("lines").address(SpoutContext("counts", "lines", {}))


def test_describing_a_source_does_not_import_kafkas_client() -> None:
    program = (
        "import sys; from txstream.spouts.kafka import KafkaSource; KafkaSource('lines'); "
        "raise SystemExit('kafka' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_range_is_stored_as_json_and_checked_when_it_comes_back() -> None:
    codec = MetaCodec(KafkaRange)
    metas = BatchMetas(
        {"lines/0": KafkaRange(3, 9, "id", skipped_from=1, leader_epoch=2)}, {"lines/1": KafkaRange(4, 4)}
    )
    assert codec.decode(codec.encode(metas), "here") == metas
    assert codec.decode_meta({"start": 1, "end": 2}, "here") == KafkaRange(1, 2)
    for broken in (
        {"start": 5, "end": 4},
        {"start": -1, "end": 4},
        {"start": "1", "end": 4},
        {"start": True, "end": 4},
        {"start": 1, "end": 4, "topic_id": None},
        {"start": 1, "end": 4, "skipped_from": "x"},
        {"start": 1, "end": 4, "leader_epoch": "x"},
        {"start": 1, "end": 4, "more": 0},
    ):
        with pytest.raises(CorruptStateError, match="here"):
            codec.decode_meta(broken, "here")


def test_a_part_of_a_range_does_not_know_the_epoch_of_its_own_end() -> None:
    assert KafkaRange(3, 9, "id", leader_epoch=2).until(5) == KafkaRange(3, 5, "id")


def test_an_empty_range_only_holds_a_place() -> None:
    metas = BatchMetas.from_plan({}, {"lines/0": KafkaRange(4, 4), "lines/1": KafkaRange(4, 5)})
    assert set(metas.partitions) == {"lines/1"}
    assert metas.positions()["lines/0"] == KafkaRange(4, 4)
