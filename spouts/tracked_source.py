"""`as_source`: a spout of tracked tuples as the source of a topology that runs in batches.

Invariants:

- The spout lives on the driver, in the source's coordinator; only the thread that plans calls it. A message
  is acked when the batch that holds it is committed, never before.
- Until then its rows are in a file, one for each batch, so that a replay of a batch, or a Spark task that is
  computed again, reads the same rows. A file gets its name once it is complete, before its batch is planned.
- The files disappear with the driver's process. A message that was not acked by then comes again from where
  the spout got it.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from txstream.api.batch_spouts import BatchCollector, BatchSpout
from txstream.api.bolts import OutputCollector, OutputFieldsDeclarer
from txstream.api.errors import DataLostError, TopologyError, UsageError
from txstream.api.spouts import SpoutContext
from txstream.api.tracked import MessageId, Spout
from txstream.api.tuples import DEFAULT_STREAM
from txstream.transaction import TransactionAttempt, Txid

DEFAULT_BATCH_RECORDS = 10_000
_MOST_SECONDS = 1.0  # out of the two that planning may take


def as_source(spout: Spout, *, batch_records: int = DEFAULT_BATCH_RECORDS) -> TrackedSource:
    """Make a source of a spout of tracked tuples: `NonTransactionalSpout(as_source(RedisStreamSpout(...)))`.

    Delivery is at least once. The spout's `ack` follows the commit of the batch that holds the message; its
    `fail` is never called, since a batch that fails is replayed from its file. When the driver dies, every
    message that was not acked comes again. Those already committed are counted twice, as nothing can tell
    them apart. Even when the driver ends in good order this may happen to its last batch. So only
    `NonTransactionalSpout` takes this source. If that matters, use a topology of tracked tuples with a
    `DeduplicateBolt`.

    A batch holds at most `batch_records` tuples, or a few more when `next_tuple` emits several. Its rows pass
    through a file in the driver's temporary folder: Spark's workers must run on the driver's machine, as they
    do with a local master. One task reads them. The source has no end, so `--until caught-up` never ends.
    The spout must declare one stream, "default". Raises TopologyError for invalid arguments.
    """
    return TrackedSource(spout, batch_records)


@dataclass(frozen=True)
class SpooledRows:
    """Where a batch's rows are: the driver's folder, and the file in it."""

    folder: str
    file: str
    records: int


class TrackedSource(BatchSpout[SpooledRows]):
    """What `as_source` makes."""

    batch_meta_type = SpooledRows
    is_replayable = False

    def __init__(self, spout: Spout, batch_records: int) -> None:
        if not isinstance(spout, Spout):
            raise TopologyError(f"as_source takes a Spout of tracked tuples, not {type(spout).__name__}")
        if batch_records < 1:
            raise TopologyError(f"batch_records is {batch_records}; it must be at least 1")
        declarer = OutputFieldsDeclarer("spout", ())
        spout.declare_output_fields(declarer)
        if list(declarer.streams) != [DEFAULT_STREAM]:
            raise TopologyError(
                f"{type(spout).__name__} declares the streams {', '.join(declarer.streams) or 'none'}; as a "
                f"source it must have one, {DEFAULT_STREAM!r}"
            )
        self.output: pa.Schema = declarer.streams[DEFAULT_STREAM]
        self.spout = spout
        self.batch_records = batch_records
        self._host = platform.node()

    def __repr__(self) -> str:
        return f"as_source({self.spout!r})"

    def open(self, context: SpoutContext) -> None:
        self._context = context
        self._reading: _Reading | None = None

    # --- driver ---------------------------------------------------------------------------------------------

    def initialize_transaction(self, txid: Txid, previous_meta: SpooledRows | None) -> SpooledRows | None:
        if self._reading is None:
            self._reading = _Reading(self, self._context)
        return self._reading.batch(txid)

    def cleanup_before(self, txid: Txid) -> None:
        if self._reading is not None:
            self._reading.ack_before(txid)

    def close(self) -> None:
        if self._reading is not None:
            self._reading.close()

    # --- executors ------------------------------------------------------------------------------------------

    def emit_batch(self, attempt: TransactionAttempt, meta: SpooledRows, collector: OutputCollector) -> None:
        path = Path(meta.folder, meta.file)
        try:
            with pa.ipc.open_file(path.read_bytes()) as file:
                for number in range(file.num_record_batches):
                    collector.emit_batch(file.get_batch(number))
        except FileNotFoundError as error:
            here = platform.node()
            if here != self._host:
                raise UsageError(
                    f"the rows of {self!r} are on the host {self._host}, where the driver runs, and cannot "
                    f"be read on {here}: use it with Spark on one machine only"
                ) from error
            raise DataLostError(f"the rows of {attempt} are gone: {path} was another driver's") from error


class _Reading:
    """The open spout and the batches whose messages are not acked yet. Also the spout's collector."""

    def __init__(self, source: TrackedSource, context: SpoutContext) -> None:
        self._spout = source.spout
        self._schema = source.output
        self._most = source.batch_records
        self._component = context.component
        self._folder = Path(tempfile.mkdtemp(prefix="txstream-tracked-"))
        self._finalizer = weakref.finalize(self, _remove, self._folder, os.getpid())
        self._held: dict[Txid, tuple[SpooledRows, list[MessageId]]] = {}
        self._begin()
        self._spout.open(context, self)
        self._spout.activate()

    def batch(self, txid: Txid) -> SpooledRows | None:
        """What this transaction holds; every call returns the same."""
        if txid in self._held:
            return self._held[txid][0]
        deadline = time.monotonic() + _MOST_SECONDS
        before = -1
        while before < self._count < self._most and time.monotonic() < deadline:
            before = self._count
            self._spout.next_tuple()
        if not self._count:
            return None
        path = self._folder / f"{txid}.arrow"
        partial = path.with_suffix(".partial")
        with pa.ipc.new_file(str(partial), self._schema) as file:
            for rows in self._rows.finish():
                file.write_batch(rows)
        partial.rename(path)
        meta = SpooledRows(str(self._folder), path.name, self._count)
        self._held[txid] = (meta, self._ids)
        self._begin()
        return meta

    def ack_before(self, txid: Txid) -> None:
        for committed in [known for known in self._held if known < txid]:
            meta, ids = self._held.pop(committed)
            for message_id in ids:
                self._spout.ack(message_id)
            (self._folder / meta.file).unlink(missing_ok=True)

    def close(self) -> None:
        self._spout.deactivate()
        self._spout.close()
        self._finalizer()

    def _begin(self) -> None:
        self._rows = BatchCollector(self._component, self._schema)
        self._ids: list[MessageId] = []
        self._count = 0

    # --- SpoutCollector -------------------------------------------------------------------------------------

    def emit(
        self, values: Sequence[object], message_id: MessageId | None = None, stream: str = DEFAULT_STREAM
    ) -> Sequence[int]:
        self._rows.emit(values, stream)
        self._count += 1
        if message_id is not None:
            self._ids.append(message_id)
        return [0]

    def emit_direct(
        self,
        task: int,
        values: Sequence[object],
        message_id: MessageId | None = None,
        stream: str = DEFAULT_STREAM,
    ) -> Sequence[int]:
        self._rows.emit_direct(task, values, stream)
        return [task]


def _remove(folder: Path, owner: int) -> None:
    """Remove the folder, but not in a fork of its owner."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
