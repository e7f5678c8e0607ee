"""`RateSpout`: generates numbered rows at a steady rate, for load tests and examples.

Invariant: row n depends only on n, the rate and the start time, which every meta carries. So a replay,
another process and a run after a restart make the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Any, ClassVar

import pyarrow as pa

from txstream.api.schema import parse_schema
from txstream.api.spouts import PartitionCoordinator, PartitionedSpout, PartitionEmitter, SpoutContext
from txstream.core.errors import DataLostError, TopologyError
from txstream.core.transaction import TransactionAttempt
from txstream.spouts.backlog import share_limit
from txstream.spouts.ranges import RecordSpan

_CHUNK_ROWS = 10_000
_MICROSECONDS = 1_000_000
# Beyond this the number of a row does not fit a bigint.
_MAX_ROWS = 1 << 62


@dataclass(frozen=True, slots=True)
class RateRange(RecordSpan):
    """Rows `[start, end)` of one partition, counted within it; `started_us` is when row 0 was due, in
    microseconds since 1970."""

    started_us: int


class RateSpout(PartitionedSpout[RateRange]):
    """Rows `n bigint, timestamp timestamp`, with n = 0, 1, 2 ... Row n is due n / rate seconds after the
    start, and that is its timestamp. Rows that became due while nothing ran are emitted later.

    rows_per_second: the rate of all partitions together.
    partitions: their number; they are called "0", "1", ..., and row n is in partition n modulo that number.
    limit_rows: end after so many rows, over all partitions; by default there is no end.
    start: when row 0 is due, a datetime with a zone. By default this is when a topology first opens the
        source; it is then kept with the topology's progress.
    clock: seconds since 1970, for tests; it stays on the driver.

    Raises TopologyError for invalid arguments.
    """

    meta_type: ClassVar[type[RateRange]] = RateRange

    def __init__(
        self,
        rows_per_second: float,
        partitions: int = 1,
        *,
        limit_rows: int | None = None,
        start: datetime | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if isinstance(rows_per_second, bool) or not 0 < rows_per_second <= _MICROSECONDS * 1000:
            raise TopologyError(
                f"rows_per_second is {rows_per_second}; it must be more than 0, at most 10**9"
            )
        if partitions < 1:
            raise TopologyError(f"partitions is {partitions}; it must be at least 1")
        if limit_rows is not None and not 0 <= limit_rows <= _MAX_ROWS:
            raise TopologyError(f"limit_rows is {limit_rows}; it must be a number of rows, from 0 to 2**62")
        if start is not None and start.tzinfo is None:
            raise TopologyError(f"start is {start}, without a zone; write for example tzinfo=datetime.UTC")
        self.output: pa.Schema = parse_schema("n bigint, timestamp timestamp")
        self.rows_per_second = rows_per_second
        self.partitions = partitions
        self.limit_rows = limit_rows
        self.start = start
        self.clock = clock

    def __repr__(self) -> str:
        return f"RateSpout({self.rows_per_second:g}, {self.partitions})"

    def coordinator(self, context: SpoutContext) -> RateCoordinator:
        return RateCoordinator(self)

    def emitter(self, context: SpoutContext) -> RateEmitter:
        return RateEmitter(self)

    def identity(self) -> Mapping[str, Any]:
        """What row n depends on. `limit_rows` may change: it is still the same topology, with more rows."""
        return {
            "rows_per_second": float(self.rows_per_second),
            "partitions": self.partitions,
            "start": None if self.start is None else self.start.isoformat(),
        }

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "clock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.clock = time.time

    def rows_of(self, partition: int, rows: int) -> int:
        """How many of the first `rows` rows are in a partition."""
        return max(0, (rows - partition + self.partitions - 1) // self.partitions)


class RateCoordinator(PartitionCoordinator[RateRange]):
    """Plans what is due."""

    def __init__(self, source: RateSpout) -> None:
        self._source = source
        self._rate = Fraction(source.rows_per_second)
        # Fixed at opening: if it were fixed at the first plan, each plan that finds nothing would move it.
        first = source.clock() if source.start is None else source.start.timestamp()
        self._started_us = round(first * _MICROSECONDS)

    def plan(self, last: Mapping[str, RateRange], limit: int) -> Mapping[str, RateRange]:
        started_us = next(iter(last.values())).started_us if last else self._started_us
        due = self._due(started_us)
        places = {
            str(number): last[str(number)].end if str(number) in last else 0
            for number in range(self._source.partitions)
        }
        backlogs = {name: self._source.rows_of(int(name), due) - place for name, place in places.items()}
        shares = share_limit(backlogs, limit, sum(places.values()))
        self.passed_over = [name for name, backlog in backlogs.items() if backlog and not shares.get(name)]
        self.untaken_records = sum(backlogs.values()) - sum(shares.values())
        return {
            name: RateRange(places[name], places[name] + taken, started_us) for name, taken in shares.items()
        }

    def targets(self) -> Mapping[str, int]:
        """The ends of a source with `limit_rows`, due or not. Raises TopologyError without a limit."""
        limit = self._source.limit_rows
        if limit is None:
            raise TopologyError(
                "RateSpout has no end, so until='caught-up' never comes; give it limit_rows, or use "
                "until_txid"
            )
        numbers = range(self._source.partitions)
        return {str(number): self._source.rows_of(number, limit) for number in numbers}

    def reached(self, last: Mapping[str, RateRange], targets: Mapping[str, Any]) -> bool:
        return self.lag_records(last, targets) == 0

    def lag_records(self, last: Mapping[str, RateRange], targets: Mapping[str, Any]) -> int:
        return sum(max(0, end - (last[name].end if name in last else 0)) for name, end in targets.items())

    def _due(self, started_us: int) -> int:
        """How many rows are due, over all partitions."""
        elapsed_us = round(self._source.clock() * _MICROSECONDS) - started_us
        if elapsed_us < 0:
            return 0
        due = int(elapsed_us * self._rate / _MICROSECONDS) + 1
        limit = _MAX_ROWS if self._source.limit_rows is None else self._source.limit_rows
        return min(due, limit)


class RateEmitter(PartitionEmitter[RateRange]):
    """Makes the rows."""

    def __init__(self, source: RateSpout) -> None:
        self._source = source
        rate = Fraction(source.rows_per_second)
        self._numerator, self._denominator = _MICROSECONDS * rate.denominator, rate.numerator

    def emit(self, attempt: TransactionAttempt, partition: str, meta: RateRange) -> Iterator[pa.RecordBatch]:
        """Make the rows of one range. Raises DataLostError for rows that this source does not have."""
        step = self._source.partitions
        if not partition.isdecimal() or int(partition) >= step:
            raise DataLostError(f"RateSpout has the partitions 0 to {step - 1}, but {partition!r} is planned")
        limit = self._source.limit_rows
        if limit is not None and meta.end > self._source.rows_of(int(partition), limit):
            raise DataLostError(
                f"rows {meta.start} to {meta.end} of partition {partition} are planned, but with "
                f"limit_rows={limit} it has {self._source.rows_of(int(partition), limit)}"
            )
        for start in range(meta.start, meta.end, _CHUNK_ROWS):
            end = min(start + _CHUNK_ROWS, meta.end)
            numbers = range(int(partition) + start * step, int(partition) + end * step, step)
            times = [meta.started_us + n * self._numerator // self._denominator for n in numbers]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(numbers, pa.int64()),
                    pa.array(times, pa.int64()).cast(self._source.output.field("timestamp").type),
                ],
                schema=self._source.output,
            )
