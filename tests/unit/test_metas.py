"""A batch's metas: no partition loses its place, and what is stored comes back unchanged or is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NewType

import pytest
from hypothesis import given, strategies as st
from support.inmemory import Range
from support.lists import each

from txstream.api.spouts import Unavailable
from txstream.core.batch_metas import BatchMetas, MetaCodec, is_empty, to_json
from txstream.core.errors import CorruptStateError, TopologyError
from txstream.core.transaction import AttemptId
from txstream.zookeeper.znode_values import StoredBatch

Offset = NewType("Offset", int)


@dataclass(frozen=True)
class Everything:
    """A meta with one field of each kind that JSON has."""

    offset: Offset
    name: str | None = None
    share: float = 0.0
    done: bool = False
    tags: list[str] | None = None
    extra: Any = None


RANGES = st.builds(lambda start, size: Range(start, start + size), st.integers(0, 99), st.integers(0, 9))
PARTITIONS = st.sampled_from(["a", "b", "c", "d", "e"])
PLANS = st.dictionaries(PARTITIONS, st.one_of(RANGES, st.just(Unavailable("no leader"))))


@given(st.dictionaries(PARTITIONS, RANGES), PLANS)
def test_a_plan_keeps_the_place_of_every_partition(
    last: dict[str, Range], plan: dict[str, Range | Unavailable]
) -> None:
    metas = BatchMetas.from_plan(last, plan)
    positions = metas.positions()
    assert set(last) <= set(positions)
    for partition, place in positions.items():
        planned = plan.get(partition)
        assert place == (planned if isinstance(planned, Range) else last[partition])
    taken = {p for p, m in plan.items() if isinstance(m, Range) and not m.is_empty}
    assert set(metas.partitions) == taken
    assert set(metas.unavailable) == {p for p, m in plan.items() if isinstance(m, Unavailable)}
    assert not set(metas.partitions) & set(metas.carried)
    assert metas.has_work == bool(metas.partitions)


@dataclass(frozen=True)
class Begun(Range):
    is_first_place: bool = True


@given(st.dictionaries(PARTITIONS, RANGES), PLANS)
def test_a_batch_with_first_places_holds_no_records(
    last: dict[str, Range], plan: dict[str, Range | Unavailable]
) -> None:
    metas = BatchMetas.from_plan(last, {**plan, "new": Begun(7, 7)})
    assert metas.has_work
    assert metas.partitions == {}
    assert metas.begun == ["new"]
    places: dict[str, Range] = {"new": Begun(7, 7)}
    for partition, planned in plan.items():
        if isinstance(planned, Range) and planned.is_empty:
            places[partition] = planned
    assert metas.positions() == {**last, **places}


def test_a_range_with_records_is_no_first_place() -> None:
    metas: BatchMetas[Range] = BatchMetas.from_plan({}, {"a": Begun(7, 9)})
    assert metas.partitions == {"a": Begun(7, 9)}
    assert not metas.begun


def test_what_is_known_of_an_unavailable_partition_is_kept_unless_it_has_a_place() -> None:
    plan = {name: Unavailable("no leader", place=Range(0, 0)) for name in ("a", "b")}
    metas: BatchMetas[Range] = BatchMetas.from_plan({"b": Range(3, 5)}, plan)
    assert metas.positions() == {"a": Range(0, 0), "b": Range(3, 5)}
    assert not metas.has_work


def test_a_partition_that_was_never_planned_and_is_unavailable_has_no_place_yet() -> None:
    metas: BatchMetas[Range] = BatchMetas.from_plan({}, {"a": Unavailable("no leader")})
    assert metas.positions() == {}
    assert metas.unavailable == {"a": "no leader"}


def test_the_lag_is_not_known_while_a_partition_is_away() -> None:
    plan: dict[str, Any] = {"a": Range(0, 3)}
    metas: BatchMetas[Range] = BatchMetas.from_plan({}, plan, 7)
    assert metas.lag_records == metas.leaving_out([]).lag_records == 7
    away: BatchMetas[Range] = BatchMetas.from_plan({}, {**plan, "b": Unavailable("no leader")}, 7)
    assert away.lag_records is None


def test_a_meta_without_is_empty_is_not_empty() -> None:
    assert not is_empty(Everything(Offset(1)))
    assert is_empty(Range(3, 3))


@given(st.dictionaries(PARTITIONS, RANGES), PLANS)
def test_metas_survive_json(last: dict[str, Range], plan: dict[str, Range | Unavailable]) -> None:
    codec: MetaCodec[Range] = MetaCodec(Range)
    metas = BatchMetas.from_plan(last, plan)
    document = json.loads(to_json(codec.encode(metas)))
    assert codec.decode(document, "here") == metas


def test_empty_parts_are_left_out() -> None:
    codec: MetaCodec[Range] = MetaCodec(Range)
    assert codec.encode(BatchMetas({"a": Range(0, 2)})) == {"partitions": {"a": {"start": 0, "end": 2}}}


def test_a_batch_is_encoded_once_for_its_check_the_ledger_and_zookeeper() -> None:
    encoded = []

    class Watched(MetaCodec[Range]):
        def encode_meta(self, meta: Range) -> dict[str, Any]:
            encoded.append(meta)
            return super().encode_meta(meta)

    codec, metas = Watched(Range), BatchMetas({"a": Range(0, 2)}, {"b": Range(3, 3)})
    stored = StoredBatch(metas, None).encode(codec)
    assert StoredBatch.decode(stored, "here", codec) == StoredBatch(metas, None)
    assert json.loads(stored)["metas"] == json.loads(to_json(codec.encode(metas)))
    assert StoredBatch(metas, AttemptId(7)).encode(codec) == stored.replace(b"null", b"7")
    assert len(encoded) == 2


def test_a_place_that_stays_is_encoded_once_and_one_that_moved_anew() -> None:
    encoded: list[Range] = []

    class Watched(MetaCodec[Range]):
        def encode_meta(self, meta: Range) -> dict[str, Any]:
            encoded.append(meta)
            return super().encode_meta(meta)

    codec = Watched(Range)
    stays, moved = Range(0, 5), Range(5, 7)
    codec.encode(BatchMetas(carried={"stays": stays, "moves": Range(0, 5)}))
    encoded.clear()
    document = codec.encode(BatchMetas(carried={"stays": stays, "moves": moved}))
    assert encoded == [moved]
    assert (
        document["carried"]
        == MetaCodec(Range).encode(BatchMetas({"stays": stays, "moves": moved}))["partitions"]
    )


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.text(max_size=3), st.integers(0, 3)),
            st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_json_that_is_put_together_is_that_of_the_document(
    batches: list[tuple[dict[str, int], dict[str, str]]],
) -> None:
    """Also of places that stay from one batch to the next, and of names that JSON has to quote."""
    codec: MetaCodec[Everything] = MetaCodec(Everything)
    known = [Everything(Offset(at), name=f'"{at}\ud800', share=at / 3) for at in range(4)]
    for places, unavailable in batches:
        carried = {name: known[at] for name, at in places.items()}
        document = codec.encode(BatchMetas({"p": known[0]}, carried, unavailable))
        plain = json.dumps(document, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
        assert document.json == plain
        assert json.loads(to_json(document)) == document


def test_a_missing_field_takes_its_default() -> None:
    codec: MetaCodec[Everything] = MetaCodec(Everything)
    assert codec.decode_meta({"offset": 4}, "here") == Everything(Offset(4))


@pytest.mark.parametrize(
    "value",
    [
        Everything(Offset(1), "x", 0.5, True, ["t"], {"any": 1}),
        Everything(Offset(1), None, 2, False, None, 7),
    ],
)
def test_every_kind_of_field_comes_back(value: Everything) -> None:
    codec: MetaCodec[Everything] = MetaCodec(Everything)
    assert codec.decode_meta(json.loads(to_json(codec.encode_meta(value))), "here") == value


@each(
    ("document", "message"),
    [
        (None, "here: expected a JSON object with a batch's metas, found None"),
        ([], "here: expected a JSON object with a batch's metas, found \\[\\]"),
        (
            {},
            "may have 'carried', 'unavailable', 'excluded', 'retried' and 'horizons', found \\[\\]",
        ),
        ({"partitions": {}, "horizons": {"t": 1.5}}, "'horizons' is a JSON object of seconds, or of objects"),
        ({"partitions": {}, "more": 1}, "found \\['more', 'partitions'\\]"),
        ({"partitions": 3}, "here: 'partitions' must be a JSON object, found 3"),
        ({"partitions": {}, "carried": []}, "here: 'carried' must be a JSON object, found \\[\\]"),
        ({"partitions": {"a/1": 3}}, "here, partition 'a/1': expected a JSON object, found 3"),
        (
            {"partitions": {"a": {"start": 1, "end": 2, "epoch": 3}}},
            "here, partition 'a': unknown field epoch in a Range; it was written by a newer version or by "
            "another spout",
        ),
        ({"partitions": {"a": {"start": 1}}}, "here, partition 'a': .* is not a Range: .*'end'"),
        (
            {"partitions": {"a": {"start": "1", "end": 2}}},
            "here, partition 'a': 'start' of a Range must be int, found '1'",
        ),
        ({"partitions": {"a": {"start": True, "end": 2}}}, "'start' of a Range must be int, found True"),
        ({"partitions": {"a": {"start": 1.0, "end": 2}}}, "'start' of a Range must be int, found 1.0"),
        ({"partitions": {"a": {"start": None, "end": 2}}}, "'start' of a Range must be int, found None"),
    ],
)
def test_what_txstream_did_not_write_is_refused(document: Any, message: str) -> None:
    codec: MetaCodec[Range] = MetaCodec(Range)
    with pytest.raises(CorruptStateError, match=message):
        codec.decode(document, "here")


@each(
    ("document", "message"),
    [
        ({"offset": 1, "name": 5}, "'name' of an Everything must be NoneType or str, found 5"),
        ({"offset": 1, "share": "half"}, "'share' of an Everything must be float or int, found 'half'"),
        ({"offset": 1, "done": 1}, "'done' of an Everything must be bool, found 1"),
        ({"offset": 1, "tags": {}}, "'tags' of an Everything must be NoneType or list, found {}"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused(document: Mapping[str, Any], message: str) -> None:
    codec: MetaCodec[Everything] = MetaCodec(Everything)
    with pytest.raises(CorruptStateError, match=message):
        codec.decode_meta(document, "here")


def test_a_meta_type_must_be_a_frozen_dataclass() -> None:
    @dataclass
    class Thawed:
        start: int

    for wrong in (dict, Thawed, Thawed(1)):
        with pytest.raises(TopologyError, match="must be a frozen dataclass of JSON values"):
            MetaCodec(wrong)  # type: ignore[arg-type]


def test_equal_documents_are_equal_strings() -> None:
    assert to_json({"b": 1, "a": "ü"}) == '{"a":"ü","b":1}' == to_json({"a": "ü", "b": 1})
