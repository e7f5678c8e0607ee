"""What only state in memory does. `test_state_promises` shows that it keeps every promise."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from support.states import Rig, word_table
from unit.test_pruning import TestLedger as TestLedger

from txstream.core.errors import UsageError
from txstream.core.transaction import attempt_id
from txstream.plugins.proof.stores.memory import MemoryBackend, forget
from txstream.state import FenceLockedError, open_database, place_of


@pytest.fixture
def url(unique: str) -> Iterator[str]:
    yield f"memory://{unique}"
    forget(unique)


class TestStore:
    def test_two_opens_of_one_name_are_one_store(self, rig: Rig, url: str) -> None:
        rig.commit(1, {"a": 1})
        rig.database.close()
        with closing(open_database(url)) as again:
            assert Rig(again, url).values() == {"a": 1}
            assert again.display_url == url
        with closing(open_database(f"{url}-other")) as other:
            assert other.topologies() == []

    def test_what_is_forgotten_is_gone(self, rig: Rig, url: str) -> None:
        rig.commit(1, {"a": 1})
        forget(url.removeprefix("memory://"))
        assert open_database(url).topologies() == []

    def test_a_raise_waits_for_an_open_commit_and_tells_who_has_waited_too_long(self, rig: Rig) -> None:
        inside, go_on = threading.Event(), threading.Event()

        def hold(_point: str) -> None:
            inside.set()
            assert go_on.wait(20)

        writer = threading.Thread(target=rig.commit, args=(1, {"a": 1}), kwargs={"reached": hold})
        writer.start()
        assert inside.wait(20)
        with pytest.raises(FenceLockedError, match=r"held the lock 'topology/words' for 0\.05 s"):
            rig.states.raise_fence(attempt_id(2, 0), lock_timeout_seconds=0.05)
        assert rig.rows() == []  # a reader does not wait
        other = Rig(rig.database, rig.url, word_table("theirs"), topology="other").join()
        other.commit(1, {"b": 1})  # nor does another topology
        go_on.set()
        rig.states.raise_fence(attempt_id(2, 0))
        assert rig.values() == {"a": 1}
        writer.join(20)

    def test_it_is_for_tests_in_one_process(self) -> None:
        assert (MemoryBackend.on_executors, MemoryBackend.outlives_process) == (False, False)


@pytest.mark.parametrize("url", ["memory://", "memory:///"])
def test_a_name_is_needed(url: str) -> None:
    with pytest.raises(UsageError, match="has no name; write for example memory://words"):
        open_database(url)


def test_one_place_however_it_is_spelled() -> None:
    assert place_of("memory://a b") == place_of("memory://a%20b") == place_of("MEMORY://a b/")
    assert place_of("memory://a") != place_of("memory://b")
