"""What goes wrong in a comparison, and when: at chosen txids, so that a run shows the same every time.

Invariants. A fault happens once, however many attempts and drivers its txid has. A partition that went away
comes back after a number of batches were planned without it, if the run goes on, and after a number of
seconds, if the run waits or has nothing else to plan. So what batches hold does not depend on the speed of
the machine.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from txstream.core.coordinator import BatchPhase
from txstream.core.errors import BatchFailedError, PartitionUnavailableError, UsageError
from txstream.core.fault_points import At, CrashError, Point
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.core.wording import counted, in_order

Kind = Literal["batch", "partition", "crash"]

# Where each kind of fault happens to its txid.
_POINTS: Mapping[Kind, Point | BatchPhase] = {
    "batch": BatchPhase.PROCESSED,
    "partition": BatchPhase.PROCESSING,
    "crash": Point.AFTER_COMMIT,
}
_REASON = "it is away, as the schedule says"
_WORDS = {
    "batch": "txid {txid} fails in processing, after it has emitted",
    "partition": "{partition} cannot be read from txid {txid} on, for {batches} or {seconds:g} s",
    "crash": "the driver dies between the commit of txid {txid} and the note of it in ZooKeeper",
}


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, at `txid`. `partition`, `batches` and `seconds` belong to an outage: which
    partition (None for the first that the batch reads), and when it ends."""

    fault: Kind
    txid: int
    partition: str | None = None
    batches: int = 4
    seconds: float = 3.0

    @property
    def at(self) -> At:
        return At(_POINTS[self.fault], self.txid)

    def __str__(self) -> str:
        values = asdict(self)
        values["batches"] = counted(self.batches, "batch", "batches")
        values["partition"] = f"partition {self.partition}" if self.partition else "a partition"
        return _WORDS[self.fault].format(**values)

    def to_document(self) -> dict[str, Any]:
        document = asdict(self)
        return document if self.fault == "partition" else {name: document[name] for name in ("fault", "txid")}


SCHEDULES: Mapping[str, tuple[Fault, ...]] = {
    "none": (),
    "batch": (Fault("batch", 3),),
    "partition": (Fault("partition", 5),),
    "crash": (Fault("crash", 12),),
    "all": (Fault("batch", 3), Fault("partition", 5), Fault("crash", 12)),
}


def load_schedule(text: str) -> tuple[Fault, ...]:
    """Return the schedule of this name, or that of a JSON file: a list of objects with the fields of `Fault`.

    Raises UsageError that says what is wrong with it.
    """
    if text in SCHEDULES:
        return SCHEDULES[text]
    path = Path(text)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"--faults {text}: it is {', '.join(SCHEDULES)} or a JSON file") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"--faults {text}: {error}") from error
    if not isinstance(document, list):
        raise UsageError(f'--faults {text}: write a list, such as [{{"fault": "batch", "txid": 3}}]')
    return tuple(
        _fault(entry, f"--faults {text}, entry {number}") for number, entry in enumerate(document, 1)
    )


def _fault(entry: Any, where: str) -> Fault:
    kinds, names = get_args(Kind), [field.name for field in fields(Fault)]
    if not isinstance(entry, dict) or entry.get("fault") not in kinds or not set(entry) <= set(names):
        raise UsageError(
            f"{where} is {entry!r:.200}; write an object with fault ({', '.join(kinds)}), txid, and for a "
            f"partition also {', '.join(names[2:])}"
        )
    for name, least in (("txid", 1), ("batches", 1), ("seconds", 0)):
        value = entry.get(name, least)
        is_number = isinstance(value, int) or (name == "seconds" and isinstance(value, float))
        if isinstance(value, bool) or not is_number or value < least:
            raise UsageError(f"{where}: {name} is {value!r}; it must be a number from {least} on")
    if "txid" not in entry or not isinstance(entry.get("partition", ""), str):
        raise UsageError(f"{where} is {entry!r:.200}; txid is a number, partition a name")
    return Fault(**entry)


@dataclass
class Outage:
    """A partition that could not be read, and from when until when (None: it still cannot be read). `place`
    is where it was to be read next. `without` holds the batches planned without it, by the places before
    them."""

    partition: str
    fault: Fault
    place: int | None
    began: float
    ended: float | None = None
    without: set[str] = field(default_factory=set)


class Injector:
    """Injects the faults of one run, over all its drivers, from several threads. `clock` is in seconds."""

    def __init__(self, faults: Iterable[Fault], clock: Callable[[], float] = time.monotonic) -> None:
        self.outages: list[Outage] = []
        self.happened: list[tuple[Fault, float]] = []
        self._pending = list(faults)
        self._clock = clock
        self._lock = threading.Lock()

    @property
    def never(self) -> Sequence[Fault]:
        """The faults that have not happened."""
        return tuple(self._pending)

    def emitting(self, attempt: TransactionAttempt, metas: Mapping[str, Any]) -> None:
        """Called when an attempt is about to read these partitions. Raises PartitionUnavailableError."""
        with self._lock:
            fault = self._take(At(BatchPhase.PROCESSING, attempt.txid))
            if fault is None or not (fault.partition or metas):
                return
            partition = fault.partition or min(metas, key=in_order)
            place = getattr(metas.get(partition), "start", None)
            self.outages.append(Outage(partition, fault, place, self._clock()))
        if partition in metas:
            raise PartitionUnavailableError(f"partition {partition!r} cannot be read: {_REASON}")

    def emitted(self, attempt: TransactionAttempt) -> None:
        """Called when an attempt was processed. Raises BatchFailedError."""
        with self._lock:
            fault = self._take(At(BatchPhase.PROCESSED, attempt.txid))
        if fault is not None:
            raise BatchFailedError("the batch fails, as the schedule says")

    def reached(self, point: Point, txid: Txid, open_batches: Mapping[Txid, str]) -> None:
        """Listen to the run. Raises CrashError, which stands for the driver's death."""
        with self._lock:
            fault = self._take(at := At(point, txid))
        if fault is not None:
            raise CrashError(f"the driver dies {at.shown}, as the schedule says")

    def unplannable(self, last: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the partitions that the batch after these places must do without, with the reason."""
        with self._lock:
            return {one.partition: _REASON for one in self.outages if self._is_left_out(one, last)}

    def unreadable(self) -> Mapping[str, str]:
        """Return the partitions that a waiting replay finds unreadable, with the reasons."""
        with self._lock:
            for outage in self.outages:
                if outage.ended is None and self._is_over(outage):
                    outage.ended = self._clock()
            return {one.partition: _REASON for one in self.outages if one.ended is None}

    def _is_left_out(self, outage: Outage, last: Mapping[str, Any]) -> bool:
        place = getattr(last.get(outage.partition), "end", outage.place)
        if outage.ended is not None or place not in (outage.place, None):
            return False  # the batch before has read the partition, and is about to fail
        batch = str(sorted(last.items()))
        if batch in outage.without:
            away = not self._is_over(outage)
        else:
            away = len(outage.without) < outage.fault.batches
        if away:
            outage.without.add(batch)
        else:
            outage.ended = self._clock()
        return away

    def _is_over(self, outage: Outage) -> bool:
        return self._clock() >= outage.began + outage.fault.seconds

    def _take(self, at: At) -> Fault | None:
        """Return the fault that is due here, and remove it: a fault happens once."""
        for fault in self._pending:
            if fault.at == at:
                self._pending.remove(fault)
                self.happened.append((fault, self._clock()))
                return fault
        return None
