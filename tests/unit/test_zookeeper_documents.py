"""What is stored, byte by byte: round trips, refusals, limits, ids and identities."""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, strategies as st
from support.lists import each

from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.errors import CorruptStateError, MetaTooLargeError, TopologyError
from txstream.core.names import MAX_TOPOLOGY_ID_CHARACTERS, validate_topology_id
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, Epoch, Txid, attempt_id
from txstream.zookeeper import Identity
from txstream.zookeeper.znode_values import (
    COMPRESSED_PAST_BYTES,
    MAX_REQUEST_BYTES,
    StoredBatch,
    StoredCurrent,
    StoredEpoch,
)

PATH = "/txstream/topologies/t/some/path"


@dataclass(frozen=True)
class Range:
    start: int
    end: int


CODEC = MetaCodec(Range)
IDENTITY = Identity.new(Semantics.OPAQUE, "spouts.KafkaSource", {"topics": ["a", "b"]}, ("words", "users"))


def metas_of(partitions: int, *, random_bytes: int = 0) -> BatchMetas[Range]:
    rng = random.Random(5)
    return BatchMetas(
        {f"topic-{rng.randbytes(random_bytes).hex()}/{n}": Range(n, n + 7) for n in range(partitions)}
    )


ATTEMPTS = st.none() | st.integers(1, (1 << 63) - 1).map(AttemptId)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
RANGES = st.dictionaries(NAMES, st.builds(Range, st.integers(), st.integers()), max_size=5)


@given(st.builds(BatchMetas, RANGES, RANGES, st.dictionaries(NAMES, NAMES, max_size=3)), ATTEMPTS)
def test_a_batch_survives_being_stored(metas: BatchMetas[Range], attempt: AttemptId | None) -> None:
    batch = StoredBatch(metas, attempt)
    assert StoredBatch.decode(batch.encode(CODEC), PATH, CODEC) == batch


def test_small_metas_are_plain_json_and_large_ones_are_compressed() -> None:
    small, large = (StoredBatch(metas_of(n), attempt_id(1, 1)) for n in (3, 3000))
    assert json.loads(small.encode(CODEC))["metas"]["partitions"]["topic-/2"] == {"start": 2, "end": 9}
    packed = large.encode(CODEC)
    assert len(packed) < COMPRESSED_PAST_BYTES < len(zlib.decompress(packed))
    assert StoredBatch.decode(packed, PATH, CODEC) == large


def test_metas_past_one_request_are_refused_with_figures_and_a_remedy() -> None:
    batch = StoredBatch(metas_of(9000, random_bytes=100), None)
    with pytest.raises(MetaTooLargeError) as refusal:
        batch.encode(CODEC)
    message = str(refusal.value)
    assert "9000 partitions" in message
    assert "fewer partitions" in message
    size = int(message.split(" take ")[1].split(" ")[0].replace(",", ""))
    assert size > MAX_REQUEST_BYTES


@each(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"metas":{"partitions":{}}}',
        b'{"attempt":null}',
        b'{"attempt":null,"metas":[]}',
        b'{"attempt":null,"metas":{}}',
        b'{"attempt":null,"metas":{"partitions":{}},"later":1}',
        b'{"attempt":true,"metas":{"partitions":{}}}',
        b'{"attempt":"7","metas":{"partitions":{}}}',
        b'{"attempt":0,"metas":{"partitions":{}}}',
        b'{"attempt":9223372036854775808,"metas":{"partitions":{}}}',
        b'{"attempt":null,"metas":{"partitions":{"a/0":{"start":1,"end":2,"new":3}}}}',
        zlib.compress(b'{"attempt":null,"metas":{"partitions":{}}}')[:-3],
        zlib.compress(b'{"attempt":null,"metas":{"partitions":{}}}') + b"tail",
        zlib.compress(b"not JSON"),
        b"[" * 100_000,
    ],
)
def test_a_batch_that_cannot_be_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptStateError, match=PATH):
        StoredBatch.decode(data, PATH, CODEC)


@each(
    "data",
    [
        b"7",
        b"{}",
        b'{"txid":1}',
        b'{"txid":0,"attempt":null}',
        b'{"txid":-3,"attempt":5}',
        b'{"txid":"2","attempt":5}',
        b'{"txid":2.0,"attempt":5}',
        b'{"txid":true,"attempt":null}',
        b'{"txid":1,"attempt":5}',
        b'{"txid":2,"attempt":null}',
        b'{"txid":2,"attempt":5,"more":0}',
    ],
)
def test_a_current_that_cannot_be_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptStateError, match=PATH):
        StoredCurrent.decode(data, PATH)


@each(
    "data",
    [
        b"3",
        b'{"epoch":3}',
        b'{"epoch":-1,"owner":"a","driver":"d"}',
        b'{"epoch":2147483648,"owner":"a","driver":"d"}',
        b'{"epoch":3,"owner":null,"driver":null}',
        b'{"epoch":0,"owner":"a","driver":"d"}',
        b'{"epoch":"3","owner":"a","driver":"d"}',
    ],
)
def test_an_epoch_that_cannot_be_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptStateError, match=PATH):
        StoredEpoch.decode(data, PATH)


def test_epoch_and_current_survive_being_stored() -> None:
    for epoch in (StoredEpoch(Epoch(0), None, None), StoredEpoch(Epoch(9), "owner", "host:1")):
        assert StoredEpoch.decode(epoch.encode(), PATH) == epoch
    for current in (StoredCurrent(Txid(1), None), StoredCurrent(Txid(8), attempt_id(3, 4))):
        assert StoredCurrent.decode(current.encode(), PATH) == current


# --- identity -----------------------------------------------------------------------------------------


def test_an_identity_survives_being_stored() -> None:
    assert Identity.decode(IDENTITY.encode(), PATH) == IDENTITY


@each(
    ("field", "value"),
    [
        ("format", 2),
        ("format", "1"),
        ("uuid", "not-one"),
        ("semantics", "exactly-never"),
        ("tables", "words"),
        ("tables", [1]),
        ("source", []),
        ("spout", None),
        ("later", 1),
    ],
)
def test_an_identity_that_cannot_be_is_corrupt(field: str, value: object) -> None:
    document = {**json.loads(IDENTITY.encode()), field: value}
    with pytest.raises(CorruptStateError, match=PATH):
        Identity.decode(json.dumps(document).encode(), PATH)


def test_differences_name_what_the_code_changed_and_nothing_else() -> None:
    again = Identity.new(IDENTITY.semantics, IDENTITY.spout, {"topics": ("a", "b")}, ("users", "words"))
    assert again.uuid != IDENTITY.uuid
    assert IDENTITY.differences(again) == []
    other = replace(
        again,
        semantics=Semantics.TRANSACTIONAL,
        spout="spouts.FileSource",
        source={"topics": ["a"], "folder": "x"},
        tables=("words",),
    )
    assert IDENTITY.differences(other) == [
        "the spout was spouts.KafkaSource and is spouts.FileSource now",
        'the source\'s folder was null and is "x" now',
        'the source\'s topics was ["a","b"] and is ["a"] now',
        "the semantics was opaque and is transactional now",
        "the state tables were users, words and are words now",
    ]


# --- topology ids -------------------------------------------------------------------------------------


@each("topology_id", ["a", "word-count", "Zählung 2", "日本", "x" * 100, "a.b", "zookeeper"])
def test_a_good_topology_id_is_returned(topology_id: str) -> None:
    assert validate_topology_id(topology_id) == topology_id


@each(
    ("topology_id", "problem"),
    [
        ("", "empty"),
        ("a/b", "slash"),
        (".", "relative"),
        ("..", "relative"),
        ("-x", "option"),
        (" a", "blank"),
        ("a\n", "unprintable"),
        ("a\x00", "unprintable"),
        ("a\ufffd", "ZooKeeper refuses"),
        ("🎈", "ZooKeeper refuses the character '🎈'.*without emoji"),
        ("\U0001d49c", "ZooKeeper refuses"),
        ("x" * (MAX_TOPOLOGY_ID_CHARACTERS + 1), "101 characters"),
        (None, "NoneType"),
    ],
)
def test_a_bad_topology_id_is_refused_in_one_sentence(topology_id: str, problem: str) -> None:
    with pytest.raises(TopologyError, match=problem) as refusal:
        validate_topology_id(topology_id)
    assert "\n" not in str(refusal.value)
