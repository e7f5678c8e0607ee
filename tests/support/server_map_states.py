"""States of committers on servers: what `test_map_state_replays` shows on SQLite, where locks are different.

Subclasses have a fixture `url` with an empty database.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.map_state_types import check_types
from support.state_bench import Bench
from txstream.core.errors import StaleAttemptError
from txstream.core.semantics import Semantics


class ServerMapStates:
    @pytest.fixture(params=[Semantics.OPAQUE, Semantics.TRANSACTIONAL])
    def bench(self, request: pytest.FixtureRequest, url: str) -> Iterator[Bench]:
        made = Bench(url, request.param, cache_rows=10 if request.param is Semantics.OPAQUE else 0)
        yield made
        made.close()

    def test_replays_tasks_that_run_twice_and_zombies(self, bench: Bench) -> None:
        accounts = [f"a{n}" for n in range(9)] + ["A0", "a0 ", "ä"]
        mine = [account for account in accounts if bench.task_of(account) == 0]
        bench.commit(1, dict.fromkeys(accounts, 1))
        assert bench.balances() == dict.fromkeys(accounts, 1), "keys that differ are one here"

        failed = bench.begin(2)
        batch = dict.fromkeys(accounts, 10)
        bench.work(failed, 0, batch)
        zombie = bench.open(failed, 1, place=1)
        bench.add(zombie, 1, batch)

        attempt = bench.begin(2)
        with pytest.raises(StaleAttemptError):
            zombie.flush()
        with ThreadPoolExecutor(2) as pool:
            seen = list(pool.map(lambda place: bench.work(attempt, 0, batch, place), (0, 1)))
        bench.work(attempt, 1, batch)
        bench.end(attempt)
        if bench.semantics is Semantics.OPAQUE:
            assert seen == 2 * [dict.fromkeys(mine, 11)]
        assert bench.balances() == dict.fromkeys(accounts, 11)
        bench.commit(3, {"a0": 5, "new": 7}, places=(1, 0))
        assert bench.balances() == {**dict.fromkeys(accounts, 11), "a0": 16, "new": 7}

    def test_every_type_is_read_as_it_was_written(self, url: str) -> None:
        check_types(url)
