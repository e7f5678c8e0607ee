"""What a `KafkaSource` accepts, refuses, shows and ships."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any, Literal

import pyarrow as pa
import pytest
from kafka import KafkaConsumer

from txstream.api.errors import CorruptStateError, TopologyError, UsageError
from txstream.api.schema import parse_schema
from txstream.api.spouts import OpaqueSpout, SpoutContext
from txstream.metas import BatchMetas, MetaCodec
from txstream.spouts.kafka import KafkaRange, KafkaSource
from txstream.spouts.kafka_options import OWNED, PASSED_THROUGH

CONTEXT = SpoutContext("counts", "lines", {"kafka": "broker:9092"})


def test_the_output_is_sparks_kafka_columns() -> None:
    expected = (
        "key binary, value string, topic string, partition int, offset bigint, timestamp timestamp, "
        "timestampType int, headers array<struct<key:string,value:binary>>"
    )
    assert pa.schema(KafkaSource("lines").output).equals(parse_schema(expected))
    typed = KafkaSource("lines", key_format="string", value_format="binary").output
    assert (typed.field("key").type, typed.field("value").type) == (pa.string(), pa.binary())
    assert OpaqueSpout(KafkaSource("lines")).output.equals(parse_schema(expected))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"topics": []}, "at least one topic"),
        ({"topics": "no spaces"}, "'no spaces'"),
        ({"topics": "a/b"}, "'a/b'"),
        ({"topics": ".."}, "'..'"),
        ({"topics": ["lines", "lines"]}, "'lines' twice"),
        ({"topics": "lines", "max_records_per_partition": 0}, "max_records_per_partition is 0"),
        ({"topics": "lines", "isolation_level": "dirty"}, "isolation_level is 'dirty'"),
        ({"topics": "lines", "value_format": "json"}, "value_format is 'json'"),
        ({"topics": "lines", "key_format": "text"}, "key_format is 'text'"),
        ({"topics": "lines", "errors": "ignore"}, "errors is 'ignore'"),
        ({"topics": "lines", "on_data_loss": "shrug"}, "on_data_loss is 'shrug'"),
        ({"topics": "lines", "partition_discovery_seconds": 0}, "partition_discovery_seconds is 0"),
        ({"topics": "lines", "starting_offsets": "middle"}, "'middle'"),
        ({"topics": "lines", "starting_offsets": {"lines": 3}}, "'lines'"),
        ({"topics": "lines", "starting_offsets": {"others/0": 3}}, "'others/0'"),
        ({"topics": "lines", "starting_offsets": {"lines/x": 3}}, "'lines/x'"),
        ({"topics": "lines", "starting_offsets": {"lines/0": -2}}, "-2"),
        ({"topics": "lines", "starting_offsets": {"lines/0": True}}, "True"),
        ({"topics": "lines", "starting_offsets": {"*": 7}}, "7 for '*'"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(TopologyError, match=named.replace("*", r"\*")):
        KafkaSource(**arguments)


def test_starting_offsets_always_have_an_entry_for_all_others() -> None:
    assert KafkaSource("lines").starting_offsets == {"*": "earliest"}
    assert KafkaSource("lines", starting_offsets="latest").starting_offsets == {"*": "latest"}
    mixed: dict[str, Literal["earliest", "latest"] | int] = {"lines/0": 5, "lines/1": "latest"}
    assert KafkaSource("lines", starting_offsets=mixed).starting_offsets == {**mixed, "*": "earliest"}


@pytest.mark.parametrize("option", sorted(OWNED))
def test_options_that_txstream_owns_are_refused_with_what_to_do(option: str) -> None:
    with pytest.raises(TopologyError, match=f"cannot set '{option}'"):
        KafkaSource("lines", client_options={option: "x"})


def test_an_unknown_option_is_refused_with_a_guess() -> None:
    with pytest.raises(TopologyError, match="did you mean 'sasl_mechanism'"):
        KafkaSource("lines", client_options={"sasl_mechanim": "PLAIN"})


def test_every_option_passed_through_is_one_of_kafka_pythons() -> None:
    assert set(KafkaConsumer.DEFAULT_CONFIG) >= PASSED_THROUGH
    assert set(OWNED) <= set(KafkaConsumer.DEFAULT_CONFIG)
    assert not PASSED_THROUGH & set(OWNED)


def test_a_password_is_never_shown() -> None:
    secret = {"sasl_plain_password": "hunter2", "ssl_password": "hunter2", "sasl_mechanism": "PLAIN"}
    source = KafkaSource("lines", "broker:9092", client_options=secret)
    assert "hunter2" not in repr(source)
    assert "sasl_plain_password" in repr(source)
    with pytest.raises(TopologyError) as caught:
        KafkaSource("lines", client_options={"sasl_plain_pasword": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_it_can_be_shipped() -> None:
    source = KafkaSource(["a", "b"], "x:1", client_options={"client_id": "me"}, starting_offsets={"a/1": 4})
    again = pickle.loads(pickle.dumps(source))
    assert vars(again) == vars(source)
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
    metas = BatchMetas({"lines/0": KafkaRange(3, 9, "id", skipped_from=1)}, {"lines/1": KafkaRange(4, 4)})
    assert codec.decode(codec.encode(metas), "here") == metas
    assert codec.decode_meta({"start": 1, "end": 2}, "here") == KafkaRange(1, 2)
    for broken in (
        {"start": 5, "end": 4},
        {"start": -1, "end": 4},
        {"start": "1", "end": 4},
        {"start": True, "end": 4},
        {"start": 1, "end": 4, "topic_id": None},
        {"start": 1, "end": 4, "skipped_from": "x"},
        {"start": 1, "end": 4, "more": 0},
    ):
        with pytest.raises(CorruptStateError, match="here"):
            codec.decode_meta(broken, "here")


def test_an_empty_range_only_holds_a_place() -> None:
    metas = BatchMetas.from_plan({}, {"lines/0": KafkaRange(4, 4), "lines/1": KafkaRange(4, 5)})
    assert set(metas.partitions) == {"lines/1"}
    assert metas.positions()["lines/0"] == KafkaRange(4, 4)
