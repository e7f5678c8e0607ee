"""What a topology's source says at this moment, asked directly: a topology that does not run reports nothing.

It asks the source's own coordinator, as a run does, and changes nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from txstream.api.errors import TxstreamError
from txstream.api.spouts import PartitionCoordinator, SpoutContext, Unavailable
from txstream.batch_metas import MetaCodec
from txstream.inspect.fsck_source import source_of
from txstream.inspect.plain_metas import positions
from txstream.settings import Settings
from txstream.transaction import Txid

if TYPE_CHECKING:
    from txstream.inspect.snapshot import Snapshot

_ASK_SECONDS = 0.5  # for each of connecting and asking: a person waits


@dataclass(frozen=True, slots=True)
class SourceNow:
    """`lag_records` are those after the last committed batch, `unavailable` the partitions that cannot be
    read now, with the reasons. If the lag is None, `unknown` says why, unless it is for these partitions."""

    lag_records: int | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)
    unknown: str | None = None


def source_now(settings: Settings, snapshot: Snapshot) -> SourceNow:
    """Ask the source of a snapshot. Only Kafka can be asked without the topology's code."""
    source, progress = source_of(snapshot.identity, None, settings), snapshot.progress
    if source is None or progress is None:
        return SourceNow(unknown="its source is only known to the topology's code")
    codec = MetaCodec(source.meta_type)
    committed = progress.batches.get(Txid(progress.current - 1))
    seconds = min(_ASK_SECONDS, settings.connect_timeout_seconds)
    context = SpoutContext("status", "status", settings.addresses(), seconds, seconds)
    try:
        metas = {} if committed is None else committed.metas.positions()
        places = {name: codec.decode_meta(meta, name) for name, meta in metas.items()}
        with _left_to_close(source.coordinator(context)) as coordinator:
            # `targets` waits for partitions that are away; a plan says at once which they are.
            answers = coordinator.plan(places, 1)
            away = {name: one.reason for name, one in answers.items() if isinstance(one, Unavailable)}
            if away:
                return SourceNow(unavailable=away)
            if committed is not None and None in positions(committed.metas).values():
                return SourceNow(unknown="it is not decided yet where each partition begins")
            return SourceNow(coordinator.lag_records(places, coordinator.targets()))
    except TxstreamError as error:
        return SourceNow(unknown=str(error))


@contextlib.contextmanager
def _left_to_close(coordinator: PartitionCoordinator[Any]) -> Iterator[PartitionCoordinator[Any]]:
    """Close it beside: it may still wait for a server that does not answer."""
    try:
        yield coordinator
    finally:
        threading.Thread(target=coordinator.close, name="txstream-status-close", daemon=True).start()
