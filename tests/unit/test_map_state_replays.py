"""Committers' states, compared with a dict through replays, zombies and worker processes that keep rows.

The tests move driver and tasks by hand, so that each step comes when the test wants it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from support.map_state_types import check_types
from support.state_bench import Bench

from txstream.core.errors import StaleAttemptError
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt, Txid, attempt_id
from txstream.engine.states.state_cache import StateCache

OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def bench(*arguments: Any, **options: Any) -> Bench:
        made.append(Bench(f"sqlite:///{tmp_path / f'{len(made)}.db'}", *arguments, **options))
        return made[-1]

    yield bench
    for each in made:
        each.close()


# --- any history -----------------------------------------------------------------------------------------

ACCOUNTS = [f"a{n}" for n in range(6)]
BATCH = st.dictionaries(st.sampled_from(ACCOUNTS), st.integers(-5, 5), max_size=5)
PLACES = st.tuples(st.integers(0, 1), st.integers(0, 1))
# What an attempt holds, where its tasks run, how many of them write, and whether the first one runs twice.
ATTEMPT = st.tuples(BATCH, PLACES, st.integers(0, 2), st.booleans())
HISTORY = st.lists(st.tuples(st.lists(ATTEMPT, max_size=3), ATTEMPT), max_size=6)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(history=HISTORY, cache_rows=st.sampled_from([0, 1, 100]))
def test_an_opaque_state_is_exact_and_every_read_is_of_the_batch_before(
    history: list[Any], cache_rows: int
) -> None:
    """Each replay holds other tuples than the attempt before it."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(f"sqlite:///{folder}/t.db", cache_rows=cache_rows)
        oracle: dict[str, int] = {}
        for txid, (failed, last) in enumerate(history, 1):
            for batch, places, writing, twice in [*failed, (*last[:2], 2, last[3])]:
                expected = {account: oracle.get(account, 0) + amount for account, amount in batch.items()}
                attempt = bench.begin(txid)
                for task in [0, *range(twice), 1][: writing + twice]:
                    seen = bench.work(attempt, task, batch, places[task])
                    assert seen == {a: n for a, n in expected.items() if bench.task_of(a) == task}
            bench.end(attempt)
            oracle |= expected
            assert bench.balances() == oracle
        bench.close()


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(history=HISTORY)
def test_a_transactional_state_is_exact(history: list[Any]) -> None:
    """Replays hold the same tuples, and leave alone what they find written."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(f"sqlite:///{folder}/t.db", TRANSACTIONAL)
        oracle: dict[str, int] = {}
        for txid, (failed, last) in enumerate(history, 1):
            batch = last[0]
            for _, places, writing, twice in [*failed, (*last[:2], 2, last[3])]:
                attempt = bench.begin(txid)
                for task in [0, *range(twice), 1][: writing + twice]:
                    bench.work(attempt, task, batch, places[task])
            bench.end(attempt)
            oracle |= {account: oracle.get(account, 0) + amount for account, amount in batch.items()}
            assert bench.balances() == oracle
        bench.close()


@pytest.mark.parametrize("cache_rows", [0, 10])
def test_a_task_that_runs_twice_under_one_attempt_reads_and_writes_the_same(
    make: Callable[..., Bench], cache_rows: int
) -> None:
    """This happens when Spark speculates, or recomputes what was lost with an executor."""
    bench = make(tasks=1, cache_rows=cache_rows)
    bench.commit(1, {"a": 1})
    attempt = bench.begin(2)
    assert [bench.work(attempt, 0, {"a": 2, "b": 3}, place) for place in (0, 1, 0)] == 3 * [{"a": 3, "b": 3}]
    bench.end(attempt)
    bench.commit(3, {"a": 4})
    assert bench.balances() == {"a": 7, "b": 3}


# --- zombies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("semantics", [OPAQUE, TRANSACTIONAL])
@pytest.mark.parametrize("ended", [False, True], ids=["under way", "committed"])
def test_a_task_of_a_superseded_attempt_writes_nothing(
    make: Callable[..., Bench], semantics: Semantics, ended: bool
) -> None:
    bench = make(semantics, tasks=1)
    bench.commit(1, {"a": 1})
    old = bench.begin(2)
    zombie = bench.open(old, 0, place=1)
    bench.add(zombie, 0, {"a": 10, "b": 10})
    new = bench.begin(2)
    if ended:
        bench.work(new, 0, {"a": 2})
        bench.end(new)
    before = bench.balances()
    with pytest.raises(StaleAttemptError):
        zombie.flush()
    assert bench.balances() == before
    assert before["a"] == (3 if ended else 1)


def test_without_a_fence_nothing_is_refused(make: Callable[..., Bench]) -> None:
    bench = make(Semantics.NON_TRANSACTIONAL, tasks=1)
    bench.commit(1, {"a": 1})
    bench.work(TransactionAttempt(Txid(1), attempt_id(1, 1)), 0, {"a": 1})
    assert bench.balances() == {"a": 2}


# --- rows that a worker process keeps ----------------------------------------------------------------------


def reads(bench: Bench) -> list[int]:
    """Return a list to which each later query adds the number of rows that it asks for."""
    asked: list[int] = []
    for process in bench.processes:
        for store in process.stores._open.values():
            read = store.read

            def counting(spec: Any, keys: Any, *, before: Any, read: Any = read) -> Any:
                asked.append(keys.num_rows)
                return read(spec, keys, before=before)

            store.read = counting  # type: ignore[method-assign]
    return asked


def test_rows_are_kept_from_batch_to_batch(make: Callable[..., Bench]) -> None:
    bench = make(cache_rows=100, tasks=1)
    bench.commit(1, {"a": 1, "b": 1})
    asked = reads(bench)
    bench.commit(2, {"a": 1, "b": 1})
    bench.commit(3, {})
    bench.commit(4, {"a": 1, "c": 1})
    assert asked == [1], "c alone was not known"
    assert bench.balances() == {"a": 3, "b": 2, "c": 1}


def test_only_the_last_used_rows_are_kept(make: Callable[..., Bench]) -> None:
    bench = make(cache_rows=2, tasks=1)
    bench.commit(1, {"x": 1, "y": 1, "a": 1, "b": 1, "c": 1})
    cache = bench.processes[0].state_caches["keeper", "balances", 0]
    assert len(cache) == 2
    asked = reads(bench)
    bench.commit(2, {"b": 1, "c": 1})
    assert asked == []
    bench.commit(3, {"b": 1})
    bench.commit(4, {"d": 1})
    assert len(cache) == 2
    assert "b" in cache
    assert "c" not in cache
    assert bench.balances() == {"x": 1, "y": 1, "a": 1, "b": 3, "c": 2, "d": 1}


def test_each_task_keeps_its_own_rows_only(make: Callable[..., Bench]) -> None:
    """A task may read a key that belongs to another task, and the other task may write it."""
    bench = make(cache_rows=100)
    other = next(account for account in ACCOUNTS if bench.task_of(account) == 1)
    for txid in range(1, 4):
        attempt = bench.begin(txid)
        states = bench.open(attempt, 0)
        assert states.states["balances"].get(other) == (txid - 1 or None)
        states.flush()
        bench.work(attempt, 1, {other: 1})
        bench.end(attempt)
    assert bench.balances() == {other: 3}


def a_failed_attempt(bench: Bench) -> dict[str, int]:
    """The attempt wrote before it failed, and its process keeps what it wrote."""
    bench.commit(1, {"a": 1})
    bench.work(bench.begin(2), 0, {"a": 10})
    bench.commit(2, {"a": 2})
    return {"a": 3}


def an_attempt_that_is_replayed_elsewhere(bench: Bench) -> dict[str, int]:
    bench.commit(1, {"a": 1})
    bench.work(bench.begin(2), 0, {"a": 10})
    bench.commit(2, {"a": 2}, places=(1, 1))
    bench.commit(3, {"a": 4})
    return {"a": 7}


def a_batch_in_another_process(bench: Bench) -> dict[str, int]:
    """As when an executor is lost, or slots change, and the first process gets the task back later."""
    bench.commit(1, {"a": 1})
    bench.commit(2, {"a": 2}, places=(1, 1))
    bench.commit(3, {"a": 4})
    return {"a": 7}


def another_leader(bench: Bench) -> dict[str, int]:
    """The new leader does not know which attempt committed last. The process stays, as if taken over."""
    bench.commit(1, {"a": 1})
    bench.work(bench.begin(2), 0, {"a": 10})
    bench.committed = None
    bench.commit(2, {"a": 2})
    return {"a": 3}


def a_task_that_is_refused(bench: Bench) -> dict[str, int]:
    """The task takes the rows that its process keeps, and does not give them back."""
    bench.commit(1, {"a": 1})
    attempt = bench.begin(2)
    states = bench.open(attempt, 0)
    bench.add(states, 0, {"a": 10})
    bench.commit(2, {"a": 2})
    with pytest.raises(StaleAttemptError):
        states.flush()
    bench.commit(3, {"a": 4})
    return {"a": 7}


STORIES = [
    a_failed_attempt,
    an_attempt_that_is_replayed_elsewhere,
    a_batch_in_another_process,
    another_leader,
    a_task_that_is_refused,
]


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("cache_rows", [0, 10])
def test_what_a_process_keeps_is_used_only_after_the_attempt_that_left_it_was_committed(
    make: Callable[..., Bench], story: Callable[[Bench], dict[str, int]], cache_rows: int
) -> None:
    bench = make(tasks=1, cache_rows=cache_rows)
    expected = story(bench)
    assert bench.balances() == expected


@pytest.mark.parametrize("story", STORIES[:-1])
def test_a_cache_that_is_not_emptied_would_be_wrong(
    make: Callable[..., Bench], story: Callable[[Bench], dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stories above are able to find such a mistake."""
    monkeypatch.setattr(StateCache, "begin", lambda self, committed: None)
    bench = make(tasks=1, cache_rows=10)
    expected = story(bench)
    assert bench.balances() != expected


# --- what executors load -----------------------------------------------------------------------------------

WITHOUT_SQL = """
import pickle, sys
from pathlib import Path
from txstream.engine.batch.worker_process import WorkerProcess
from txstream.engine.batch.state_tasks import TaskStates
from txstream.core.transaction import TransactionAttempt

process = WorkerProcess(pickle.loads(Path(sys.argv[1]).read_bytes()))
states = TaskStates(process.plan.bolt("keeper"), 0, TransactionAttempt(1, 1), process)
assert states.flush() == {}
assert list(states.states) == ["balances"]
print([name for name in ("sqlalchemy", "alembic", "kazoo", "kafka") if name in sys.modules])
"""


def test_a_task_that_touches_no_state_loads_no_database_library(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    plan = tmp_path / "plan"
    plan.write_bytes(pickle.dumps(make().processes[0].plan))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SQL, plan],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_every_type_is_read_as_it_was_written(sqlite_url: str) -> None:
    check_types(sqlite_url)
