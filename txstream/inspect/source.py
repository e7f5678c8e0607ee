"""A topology's source at this moment: whether it still has what the topology needs (stored plans, and each
partition's next place), and how far the topology is behind.

It asks the source's own coordinator, as a run does, and changes nothing.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from txstream.api.spouts import HeldBack, PartitionCoordinator, PartitionedSpout, SpoutContext, Unavailable
from txstream.core.batch_metas import BatchMetas, MetaCodec, is_empty
from txstream.core.errors import DataLostError, TxstreamError
from txstream.core.transaction import Txid
from txstream.inspect.plain_metas import positions
from txstream.inspect.records import Finding, Severity
from txstream.settings import Settings

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.inspect.snapshot import Snapshot
    from txstream.zookeeper import Identity

# A person waits: for one answer of a broker, and for everything.
_ANSWER_SECONDS = 0.4
_ASK_SECONDS = 0.6
KAFKA_SOURCE = "txstream.spouts.kafka.KafkaSource"
_CERTAIN_SECONDS = 5.0
_BETWEEN_SECONDS = 0.1


def source_of(
    identity: Identity | None, topology: Topology | None, settings: Settings
) -> PartitionedSpout[Any] | None:
    """Return the source to ask: the code's, else Kafka with the identity's topics, else None."""
    if topology is not None:
        source: PartitionedSpout[Any] = topology.spout.source
        return source
    if identity is None or identity.spout != KAFKA_SOURCE or not settings.kafka:
        return None
    from txstream.spouts.kafka import KafkaSource

    return KafkaSource(identity.source.get("topics"), topic_pattern=identity.source.get("topic_pattern"))


def check_source(
    snapshot: Snapshot,
    source: PartitionedSpout[Any] | None,
    codec: MetaCodec[Any],
    settings: Settings,
) -> Iterator[Finding]:
    """Yield findings about the source; a single one if it cannot be asked."""
    if source is None:
        yield Finding(
            "source-not-checked", Severity.NOTE, "source",
            "whether its data is still there was not checked",
            "give --kafka, or the topology's code by --topology MODULE:FACTORY",
        )  # fmt: skip
        return
    context = SpoutContext(
        snapshot.topology,
        "fsck",
        settings.addresses(),
        settings.fetch_timeout_seconds,
        settings.connect_timeout_seconds,
    )
    try:
        coordinator = source.coordinator(context)
    except TxstreamError as error:
        yield Finding(
            "source-unreachable", Severity.WARNING, "source", str(error),
            "start or mend it; if it needs credentials, give the code by --topology MODULE:FACTORY",
        )  # fmt: skip
        return
    try:
        yield from _plans(snapshot, coordinator)
        yield from _places(snapshot, coordinator, codec)
    finally:
        coordinator.close()


def _plans(snapshot: Snapshot, coordinator: PartitionCoordinator[Any]) -> Iterator[Finding]:
    """Check the stored plans of a transactional topology, which a replay reads again."""
    progress = snapshot.progress
    for txid, batch in sorted(progress.batches.items()) if progress is not None else ():
        if progress is None or txid < progress.current:
            continue
        planned = {name: meta for name, meta in batch.metas.partitions.items() if not is_empty(meta)}
        for name, answer in asked(planned, coordinator.unreadable).items():
            if isinstance(answer, DataLostError):
                yield Finding(
                    "plan-lost", Severity.ERROR, f"partition {name}", f"stored plan of txid {txid}: {answer}",
                    "a transactional batch cannot be repeated without it: start under a new id (--id)",
                )  # fmt: skip
            elif isinstance(answer, Unavailable):
                yield _unavailable(name, answer)


def _places(
    snapshot: Snapshot, coordinator: PartitionCoordinator[Any], codec: MetaCodec[Any]
) -> Iterator[Finding]:
    """Check the places after the last planned batch, where the next one begins."""
    metas = _last_planned(snapshot, codec)
    if metas is None:
        return
    places = dict(metas.positions())
    for name, answer in asked(places, lambda last: coordinator.plan(last, 1)).items():
        if name not in places:
            continue  # a new partition
        skipped_from = getattr(answer, "skipped_from", None)
        if isinstance(answer, DataLostError):
            yield Finding(
                "position-lost", Severity.ERROR, f"partition {name}", str(answer),
                "what was not read is lost: go on behind the gap with on_data_loss='skip', or start under a "
                "new id (--id)",
            )  # fmt: skip
        elif isinstance(answer, Unavailable):
            yield _unavailable(name, answer)
        elif skipped_from is not None:
            yield Finding(
                "position-skips", Severity.WARNING, f"partition {name}",
                _gap(skipped_from, getattr(answer, "start", None)),
                "nothing brings it back; the next batch records the gap",
            )  # fmt: skip


def _gap(skipped_from: int, start: int | None) -> str:
    if start is not None and start <= skipped_from:
        return f"the log was cut back, or created again, before {skipped_from}; the source goes on at {start}"
    return f"what was at {skipped_from} to {'?' if start is None else start} is lost; the source skips it"


def _last_planned(snapshot: Snapshot, codec: MetaCodec[Any]) -> BatchMetas[Any] | None:
    if snapshot.progress is not None:
        batches = snapshot.progress.batches
        return batches[max(batches)].metas if batches else None
    rows = [db.last for db in snapshot.databases if db.last is not None]
    if not rows:
        return None
    newest = max(rows, key=lambda row: row.txid)
    return codec.decode(newest.metas, f"ledger of topology {snapshot.topology!r}, txid {Txid(newest.txid)}")


def asked(metas: Mapping[str, Any], ask: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the source's answers by partition. The source raises for the first lost partition, so each is
    then asked by itself. While an answer is not certain yet, the source is asked again."""
    deadline = time.monotonic() + _CERTAIN_SECONDS
    pause = threading.Event()
    while True:
        answers = _once(metas, ask)
        uncertain = any(
            isinstance(answer, Unavailable) and "being checked" in answer.reason
            for answer in answers.values()
        )
        if not uncertain or time.monotonic() >= deadline:
            return answers
        pause.wait(_BETWEEN_SECONDS)


def _once(metas: Mapping[str, Any], ask: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> dict[str, Any]:
    if not metas:
        return {}
    try:
        return dict(ask(metas))
    except DataLostError as error:
        if len(metas) == 1:
            return dict.fromkeys(metas, error)
    answers: dict[str, Any] = {}
    for name, meta in metas.items():
        try:
            answers |= {n: answer for n, answer in ask({name: meta}).items() if n == name}
        except DataLostError as error:
            answers[name] = error
    return answers


def _unavailable(name: str, answer: Unavailable) -> Finding:
    return Finding(
        "partition-unavailable", Severity.WARNING, f"partition {name}", answer.reason,
        "whether its data is there is only known when it can be read again",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceNow:
    """`lag_records` are those after the last committed batch, `unavailable` the partitions that cannot be
    read now, with the reasons, `lags` the lag of each partition. If the lag is None, `unknown` says why,
    unless it is for these partitions. Of the lag, `held_back` is there and cannot be read yet."""

    lag_records: int | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)
    unknown: str | None = None
    lags: Mapping[str, int] = field(default_factory=dict, compare=False)
    held_back: Mapping[str, HeldBack] = field(default_factory=dict, compare=False)


def begin_to_ask(settings: Settings, snapshot: Snapshot) -> Callable[[], SourceNow]:
    """Ask the source of a snapshot beside what the caller does meanwhile. The function that is returned waits
    for the answer, at most until the time for everything is over."""
    if source_of(snapshot.identity, None, settings) is not None:
        import txstream.spouts.kafka.coordinator  # noqa: F401 - before the time counts
    answer: Future[SourceNow] = Future()

    def ask() -> None:
        try:
            answer.set_result(source_now(settings, snapshot))
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            answer.set_exception(error)

    deadline = time.monotonic() + _ASK_SECONDS
    threading.Thread(target=ask, name="txstream-status-ask", daemon=True).start()

    def wait() -> SourceNow:
        try:
            return answer.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            return SourceNow(unknown=f"Kafka at {settings.kafka} has not answered within {_ASK_SECONDS:g} s")

    return wait


def source_now(settings: Settings, snapshot: Snapshot) -> SourceNow:
    """Ask the source of a snapshot. Only Kafka can be asked without the topology's code."""
    source, progress = source_of(snapshot.identity, None, settings), snapshot.progress
    if source is None and snapshot.identity is not None and snapshot.identity.spout == KAFKA_SOURCE:
        why = "no broker is known to ask: no address is given here (--kafka), and none is embedded"
        return SourceNow(unknown=why)
    if source is None or progress is None:
        return SourceNow(unknown="its source is only known to the topology's code")
    codec = MetaCodec(source.meta_type)
    committed = progress.batches.get(Txid(progress.current - 1))
    seconds = min(_ANSWER_SECONDS, settings.connect_timeout_seconds)
    context = SpoutContext("status", "status", settings.addresses(), seconds, seconds)
    try:
        metas = {} if committed is None else committed.metas.positions()
        places = {name: codec.decode_meta(meta, name) for name, meta in metas.items()}
        with _left_to_close(source.coordinator(context)) as coordinator:
            # `targets` waits for partitions that are away. A plan says at once which they are, and takes all
            # that the others have.
            answers = coordinator.plan(places, sys.maxsize)
            away = {name: one.reason for name, one in answers.items() if isinstance(one, Unavailable)}
            if away:
                return SourceNow(unavailable=away, lags=_lags(places, answers))
            if committed is not None and None in positions(committed.metas).values():
                return SourceNow(unknown="it is not decided yet where each partition begins")
            targets = coordinator.targets()
            lags = {
                name: coordinator.lag_records({name: places[name]} if name in places else {}, {name: end})
                for name, end in targets.items()
            }
            known = {name: lag for name, lag in lags.items() if lag is not None}
            lag = coordinator.lag_records(places, targets)
            return SourceNow(lag, lags=known, held_back=coordinator.held_back)
    except TxstreamError as error:
        return SourceNow(unknown=str(error))


def _lags(places: Mapping[str, Any], answers: Mapping[str, Any]) -> dict[str, int]:
    """Return the lags of the partitions that a plan could ask; none if it first decides where some begin."""
    readable = {name: one for name, one in answers.items() if not isinstance(one, Unavailable)}
    if any(one.is_first_place for one in readable.values()):
        return {}
    here = [name for name in places if name in readable or name not in answers]
    return {name: readable[name].records if name in readable else 0 for name in here}


@contextlib.contextmanager
def _left_to_close(coordinator: PartitionCoordinator[Any]) -> Iterator[PartitionCoordinator[Any]]:
    """Close it beside: it may still wait for a server that does not answer."""
    try:
        yield coordinator
    finally:
        threading.Thread(target=coordinator.close, name="txstream-status-close", daemon=True).start()
