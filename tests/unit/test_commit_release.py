"""What is kept between the phases is released, whatever becomes of the attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.committing import (
    BATCHES,
    Custody,
    Trouble,
    check_tables,
    committing,
    meeting,
    state,
    watch_runners,
    word_source,
)
from support.storm import states

from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.bolts.sql import SqlStateBolt
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import BatchTimeoutError
from txstream.core.fault_points import Point
from txstream.plugins.local.local_runner import InProcessRunner
from txstream.spouts.memory import MemorySpout
from txstream.testing import AttemptState, TopologyTest

BOTH = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
COMMITTED, DROPPED, FAILED = AttemptState.COMMITTED, AttemptState.DROPPED, AttemptState.FAILED


@pytest.fixture
def source() -> Iterator[MemorySpout]:
    with word_source() as spout:
        yield spout


@pytest.fixture
def custody(monkeypatch: pytest.MonkeyPatch) -> Custody:
    return watch_runners(monkeypatch)


Path = Callable[[TopologyTest, Custody], None]


def committed(test: TopologyTest, custody: Custody) -> None:
    test.run()
    assert len(custody.given) == 3


def failed_in_processing(test: TopologyTest, custody: Custody) -> None:
    with meeting(Trouble("plain", "finish_batch", ValueError("once"), txid=2)):
        test.run()
    assert states(test, 2) == [FAILED, COMMITTED]


def failed_in_its_bolts(test: TopologyTest, custody: Custody) -> None:
    with meeting(Trouble("upper", "finish_batch", ValueError("once"), txid=2)):
        test.run()
    assert states(test, 2) == [FAILED, COMMITTED]


def failed_in_the_states(test: TopologyTest, custody: Custody) -> None:
    for at in (Point.BEFORE_COMMIT, Point.INSIDE_COMMIT, Point.AFTER_COMMIT):
        test.fail(2, at=at)
    test.run()
    assert states(test, 2) == [FAILED, FAILED, FAILED, COMMITTED]


def superseded_when_processed(test: TopologyTest, custody: Custody) -> None:
    test.process(2)
    test.fail(1)
    assert states(test, 2) == [DROPPED]
    test.run()


def superseded_while_it_is_processed(test: TopologyTest, custody: Custody) -> None:
    """Txid 2 is in its bolt when txid 1 fails."""

    def fails_the_one_before() -> None:
        test.clock.advance(30)
        custody.wait_until(lambda: len(custody.cancelled) == 2, "both attempts to be cancelled")

    with meeting(Trouble("plain", "finish_batch", fails_the_one_before, txid=2)):
        test.process(2, alone=True)
    assert (states(test, 1)[0], states(test, 2)[0]) in ((FAILED, DROPPED), (FAILED, FAILED))
    test.run()
    assert len(test.attempts(2)) == 2


def timed_out_in_processing(test: TopologyTest, custody: Custody) -> None:
    _too_slow("plain", test, custody)


def timed_out_in_the_commit(test: TopologyTest, custody: Custody) -> None:
    _too_slow("upper", test, custody)


def _too_slow(component: str, test: TopologyTest, custody: Custody) -> None:
    def is_slow() -> None:
        test.clock.advance(30)
        custody.wait_until(lambda: bool(custody.cancelled), "the attempt to be cancelled")

    with meeting(Trouble(component, "finish_batch", is_slow, txid=1)):
        test.run()
    assert isinstance(test.attempts(1)[0].error, BatchTimeoutError)


@BOTH
@pytest.mark.parametrize(
    "path",
    [
        committed,
        failed_in_processing,
        failed_in_its_bolts,
        failed_in_the_states,
        superseded_when_processed,
        superseded_while_it_is_processed,
        timed_out_in_processing,
        timed_out_in_the_commit,
    ],
)
def test_what_is_kept_for_the_commit_is_released_once(
    source: MemorySpout, spout: Any, path: Path, custody: Custody
) -> None:
    with TopologyTest(committing(source, spout)) as test:
        path(test, custody)
        check_tables(test, BATCHES)
        custody.wait_until(lambda: custody.unreleased() == [], "everything to be released")
        assert len(custody.given) >= 3


def test_what_is_kept_at_the_end_of_the_run_is_left_to_the_close_of_the_runner(
    source: MemorySpout, custody: Custody
) -> None:
    with TopologyTest(committing(source)) as test:
        test.process(2)
        committing_one, processed_one = (test.attempts(txid)[-1].id for txid in (1, 2))
        assert set(custody.unreleased()) == {committing_one, processed_one}
        test.crash()
        assert custody.closed == 1
        assert custody.unreleased() == [processed_one], "a commit that has begun releases what it has read"


def test_without_bolts_in_the_commit_phase_the_runner_is_not_asked(
    source: MemorySpout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InProcessRunner, "commit", None)
    monkeypatch.setattr(InProcessRunner, "release", None)
    builder = TransactionalTopologyBuilder("plain", "words", OpaqueSpout(source))
    builder.set_bolt("store", SqlStateBolt(state("counts"), n=Count())).fields_grouping("words", "word")
    with TopologyTest(builder.build()) as test:
        test.run()
        assert test.table("counts")


def test_the_metas_of_a_batch_are_encoded_once(source: MemorySpout, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = MetaCodec.encode_meta
    encoded = []

    def noted(codec: MetaCodec[Any], meta: Any) -> dict[str, Any]:
        encoded.append(meta)
        return encode(codec, meta)

    monkeypatch.setattr(MetaCodec, "encode_meta", noted)
    with TopologyTest(committing(source)) as test:
        test.commit(1)
        metas = test.attempts(1)[0].metas
    assert len(encoded) == len(metas.positions())
