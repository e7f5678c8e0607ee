"""The conformance suite: a correct source keeps every promise, and some source breaks each promise."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.inmemory import MemoryLog, MemorySource
from support.line_source import LineCoordinator, LineEmitter, LineHarness, LineRange, LineSource
from support.wrong_spouts import WRONG

from txstream.api.spouts import SpoutContext, Unavailable
from txstream.core.errors import PartitionUnavailableError, UsageError
from txstream.core.transaction import TransactionAttempt
from txstream.plugins.proof.spout_suite import (
    Row,
    Rows,
    SpoutConformanceError,
    SpoutHarness,
    check_spout,
    spout_checks,
    trial,
)

pytestmark = pytest.mark.soak

CHECKS = {check.name: check for check in spout_checks()}
# A process for each source would take longer than all the other checks.
IN_THIS_PROCESS = [name for name in CHECKS if name != "same-rows-in-another-process"]
Create = Callable[[type[LineSource]], Callable[[], LineHarness]]


class HastyHarness(LineHarness):
    """Gives up soon on a source that hangs."""

    deadline_seconds = 0.3


class UnforeseenHarness(HastyHarness):
    """Knows that rows come, but not which."""

    def append(self, count: int) -> Rows | None:
        super().append(count)
        return None

    def add_partition(self, count: int) -> Rows | None:
        super().add_partition(count)
        return None


class ThreadBoundEmitter(LineEmitter):
    """Like a connection of sqlite3, which serves only the thread that opened it."""

    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.home = threading.get_ident()

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        self.close()
        return super().read(attempt, partition, meta)

    def close(self) -> None:
        if threading.get_ident() != self.home:
            raise RuntimeError("this connection belongs to another thread")


class ThreadBoundSource(LineSource):
    emitter_type = ThreadBoundEmitter


class BusyCoordinator(LineCoordinator):
    """Is too slow for one plan in three."""

    in_time = itertools.cycle([False, True, True])

    def plan(self, last: Mapping[str, LineRange], limit: int) -> Mapping[str, LineRange | Unavailable]:
        if not next(self.in_time):
            raise PartitionUnavailableError("the service was too slow")
        return super().plan(last, limit)


class BusyEmitter(LineEmitter):
    """Is too slow for one read in three."""

    in_time = itertools.cycle([False, True, True])

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        if not next(self.in_time):
            raise PartitionUnavailableError("the service was too slow")
        return super().read(attempt, partition, meta)


class BusySource(LineSource):
    coordinator_type = BusyCoordinator
    emitter_type = BusyEmitter


class PatientHarness(LineHarness):
    """Lets the service take as long as it may on a busy machine."""

    settle_seconds = 60.0


class MemoryHarness(SpoutHarness):
    """The source that most tests of this project run on; its log is a dictionary in this process."""

    settle_seconds = 0

    def __init__(self) -> None:
        self.log = MemoryLog({"a": [], "b": []})

    def create(self) -> MemorySource:
        return MemorySource(self.log)

    def append(self, count: int) -> Rows | None:
        return {name: self._add(name, count) for name in self.log.partitions}

    def add_partition(self, count: int) -> Rows | None:
        self.log.partitions["new"] = []
        return {"new": self._add("new", count)}

    def hide(self, partition: str) -> None:
        self.log.hidden.add(partition)

    def show(self, partition: str) -> None:
        self.log.hidden.discard(partition)

    def _add(self, name: str, count: int) -> list[Row]:
        rows = self.log.partitions[name]
        values = [f"{name}{len(rows) + number}" for number in range(count)]
        rows += values
        return [{"value": value} for value in values]


@pytest.fixture
def harness_of(tmp_path: Path) -> Create:
    """Return a maker of harnesses over a source, each in a folder of its own."""
    numbers = itertools.count()

    def harness_of(source: type[LineSource]) -> Callable[[], LineHarness]:
        return lambda: HastyHarness(tmp_path / str(next(numbers)), source)

    return harness_of


def broken_promises(create: Callable[[], LineHarness], **options: object) -> list[str]:
    try:
        check_spout(create, **options)  # type: ignore[arg-type]
    except SpoutConformanceError as error:
        return [promise.name for promise in error.broken]
    return []


def test_a_correct_source_keeps_every_promise(tmp_path: Path) -> None:
    numbers = itertools.count()
    assert not check_spout(lambda: LineHarness(tmp_path / str(next(numbers)))).not_applicable


def test_every_check_has_a_source_that_breaks_its_promise() -> None:
    assert set(WRONG) == set(CHECKS)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_source_is_told(name: str, harness_of: Create) -> None:
    """The first one breaks this promise alone."""
    first, *others = WRONG[name]
    found = {first.__name__: broken_promises(harness_of(first), only={*IN_THIS_PROCESS, name})}
    found |= {source.__name__: broken_promises(harness_of(source), only=[name]) for source in others}
    assert found == {source.__name__: [name] for source in WRONG[name]}


def test_rows_that_cannot_be_foreseen_are_compared_with_one_large_batch(tmp_path: Path) -> None:
    numbers = itertools.count()
    report = check_spout(lambda: UnforeseenHarness(tmp_path / str(next(numbers))), only=IN_THIS_PROCESS)
    assert not report.not_applicable


@pytest.mark.parametrize("name", ["nothing-skipped", "nothing-twice"])
def test_unforeseen_rows_tell_a_wrong_source_too(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpoutConformanceError, match=f"promise '{name}' is broken"):
        CHECKS[name].run(lambda: UnforeseenHarness(tmp_path / "log", WRONG[name][0]))


def test_an_emitter_may_belong_to_the_thread_that_opened_it(harness_of: Create) -> None:
    assert not check_spout(harness_of(ThreadBoundSource), only=IN_THIS_PROCESS).not_applicable


def test_a_source_whose_service_is_slow_for_a_moment_keeps_every_promise(tmp_path: Path) -> None:
    numbers = itertools.count()
    report = check_spout(
        lambda: PatientHarness(tmp_path / str(next(numbers)), BusySource), only=IN_THIS_PROCESS
    )
    assert not report.not_applicable


# --- what is told ------------------------------------------------------------------------------------------


def test_the_error_says_promise_expectation_finding_and_where_to_look(harness_of: Create) -> None:
    (wrong,) = (source for source in WRONG["nothing-skipped"] if source.__name__ == "SkippingSource")
    with pytest.raises(SpoutConformanceError) as caught:
        check_spout(harness_of(wrong))
    assert str(caught.value).splitlines() == [
        "promise 'nothing-skipped' is broken: Every row of the log is in some batch.",
        "  expected: row 3 of partition 'a': {'line': 'a line 3'}",
        "  found:    it is in none of the 5 batches; they have 7 rows of this partition, the log has 8; "
        "the row before it is in batch 1, planned as LineRange(start=0, end=3)",
        "  hint:     begin each range where the meta in `last` ends, not after it, and emit it to its end",
    ]


def test_all_broken_promises_are_told_at_once(harness_of: Create) -> None:
    class FromTheBeginning(LineCoordinator):
        def start(self, partition: str, last: Mapping[str, LineRange]) -> int:
            return 0

    class Endless(LineSource):
        coordinator_type = FromTheBeginning

    names = broken_promises(harness_of(Endless), only=IN_THIS_PROCESS)
    assert {"nothing-twice", "nothing-skipped", "no-busy-batches"} <= set(names)


def test_an_error_of_the_source_is_the_cause(harness_of: Create) -> None:
    (wrong,) = (
        source for source in WRONG["a-read-in-an-outage-raises"] if source.__name__ == "RawErrorsSource"
    )
    with pytest.raises(SpoutConformanceError, match=r"OSError: a\.lines: the disk does not answer") as caught:
        CHECKS["a-read-in-an-outage-raises"].run(harness_of(wrong))
    assert isinstance(caught.value.__cause__, OSError)


def test_an_error_of_the_harness_is_its_own(tmp_path: Path) -> None:
    class Failing(LineHarness):
        def append(self, count: int) -> Rows | None:
            raise ConnectionError("no broker")

    with pytest.raises(ConnectionError, match="no broker"):
        check_spout(lambda: Failing(tmp_path / "log"))


def test_a_column_that_the_source_lacks_is_an_error_of_the_harness(tmp_path: Path) -> None:
    class Misnaming(LineHarness):
        def append(self, count: int) -> Rows | None:
            super().append(count)
            return {"a": [{"lines": f"line {self.written + number}"} for number in range(count)]}

    with pytest.raises(UsageError, match=r"partition 'a' has a column 'lines', .* columns are line"):
        CHECKS["in-order"].run(lambda: Misnaming(tmp_path / "log"))


def test_rows_that_cannot_be_told_apart_are_an_error_of_the_harness(tmp_path: Path) -> None:
    class Repeating(LineHarness):
        def append(self, count: int) -> Rows | None:
            super().append(count)
            return {"a": [{"line": "the same"}] * count}

    with pytest.raises(UsageError, match="the harness wrote equal rows to partition 'a'"):
        CHECKS["in-order"].run(lambda: Repeating(tmp_path / "log"))


def test_a_source_that_hangs_is_given_up(harness_of: Create) -> None:
    (wrong,) = (source for source in WRONG["plans-around-an-outage"] if source.__name__ == "HangingSource")
    with pytest.raises(SpoutConformanceError, match=r"neither within 0\.3 s \(deadline_seconds\)"):
        CHECKS["plans-around-an-outage"].run(harness_of(wrong))


def test_a_source_that_hangs_without_an_outage_is_given_up(
    harness_of: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NeverOpens(LineSource):
        def coordinator(self, context: SpoutContext) -> Any:
            threading.Event().wait()

    monkeypatch.setattr(trial, "HUNG_SECONDS", 0.0)
    with pytest.raises(SpoutConformanceError, match=r"no answer within 0\.3 s"):
        CHECKS["nothing-skipped"].run(harness_of(NeverOpens))


def test_what_does_not_apply_is_reported_with_the_reason() -> None:
    report = check_spout(MemoryHarness)
    assert dict(report.not_applicable) == {
        "same-rows-in-another-process": "another process cannot read the source (other_process is False)",
        "lost-rows-are-told": "the harness has no lose()",
        "a-lost-place-is-told": "the harness has no lose()",
        "lag-goes-to-zero": "the source does not know its lag (lag_records is None)",
    }
    assert set(report.kept) | set(dict(report.not_applicable)) == set(CHECKS)
    assert "not applicable  lost-rows-are-told: the harness has no lose()" in str(report).splitlines()


def test_an_unknown_name_is_an_error(harness_of: Create) -> None:
    with pytest.raises(
        UsageError, match="there is no check 'nothing-lost'; the checks are nothing-skipped, "
    ):
        check_spout(harness_of(LineSource), only=["nothing-lost"])
    report = check_spout(harness_of(LineSource), only=["resumes"])
    assert str(report) == "kept            resumes"


def test_harnesses_are_closed_also_after_a_failure(tmp_path: Path) -> None:
    closed: list[type[LineSource]] = []

    class Closing(HastyHarness):
        def close(self) -> None:
            closed.append(self.source_type)

    sources: list[type[LineSource]] = [LineSource, WRONG["nothing-twice"][0]]
    for source in sources:
        broken_promises(partial(Closing, tmp_path / source.__name__, source), only=["nothing-twice"])
    assert closed == sources


def test_the_suite_needs_no_pytest() -> None:
    program = "import sys, txstream.plugins.proof.spout_suite; print('pytest' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
