"""Random histories of attempts, and an oracle that knows nothing of SQL, txids in rows or prevs.

The oracle: whatever was tried, the table holds, per key, the fold of the deltas of each txid's last
committed attempt, in txid order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from support.states import Rig, word_table
from txstream.api.errors import StaleAttemptError
from txstream.api.reducers import Count, Max, Min
from txstream.semantics import Semantics
from txstream.state import StateBackend, open_database
from txstream.transaction import TransactionAttempt

Deltas = Mapping[str, tuple[int, int, int]]
KEYS = "abcd"

_names = itertools.count()


@dataclass(frozen=True)
class Try:
    """One attempt: it commits, from the driver or by shares; crashes inside its transaction; comes back after
    a newer one; or dies among its shares, of which some run later."""

    deltas: Deltas
    fate: str

    @property
    def commits(self) -> bool:
        return self.fate in ("commit", "shares")


def _deltas() -> st.SearchStrategy[Deltas]:
    small = st.integers(-3, 3)
    return st.dictionaries(st.sampled_from(KEYS), st.tuples(small, small, small), max_size=len(KEYS))


def histories(semantics: Semantics) -> st.SearchStrategy[list[list[Try]]]:
    """For each txid, its attempts in order. A transactional replay holds the same tuples."""
    fates = st.sampled_from(["commit", "shares", "crash", "zombie", "lost shares"])
    if semantics is Semantics.TRANSACTIONAL:
        txid = st.builds(
            lambda deltas, fates: [Try(deltas, fate) for fate in fates],
            _deltas(),
            st.lists(fates, min_size=1, max_size=4),
        )
    else:
        txid = st.lists(st.builds(Try, _deltas(), fates), min_size=1, max_size=4)
    return st.lists(txid, min_size=1, max_size=6)


class _CrashError(Exception):
    pass


class HistoryContract:
    """Subclasses have a fixture `url` of the class, whose store all histories share."""

    @pytest.fixture(scope="class")
    @staticmethod
    def at(url: str) -> Iterator[tuple[StateBackend, str]]:
        database = open_database(url)
        yield database, url
        database.close()

    @pytest.mark.parametrize("semantics", [Semantics.OPAQUE, Semantics.TRANSACTIONAL])
    @given(data=st.data())
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    def test_any_history_gives_what_its_committed_attempts_held(
        self, at: tuple[StateBackend, str], semantics: Semantics, data: st.DataObject
    ) -> None:
        play(*at, str(next(_names)), semantics, data.draw(histories(semantics)))


def play(
    database: StateBackend, url: str, name: str, semantics: Semantics, history: Sequence[Sequence[Try]]
) -> None:
    """Play a history against a table of its own and compare after every committed attempt."""
    spec = word_table(
        f"table_{name}",
        semantics,
        value="total bigint, least bigint, most bigint",
        reducers={"total": Count(), "least": Min("x"), "most": Max("x")},
    )
    rig = Rig(database, url, spec, topology=f"topology-{name}").join()
    committed: list[Deltas] = []
    late: list[tuple[TransactionAttempt, Deltas]] = []  # shares that nobody waits for
    for txid, tries in enumerate(history, start=1):
        last: Deltas | None = None
        is_whole = True
        # A txid goes on being tried until it is committed; the driver would not begin the next one.
        for one in [*tries, *([] if tries[-1].commits else [Try(tries[-1].deltas, "commit")])]:
            match one.fate:
                case "crash":
                    _crash(rig, txid, one.deltas)
                case "zombie":
                    _come_back(rig, txid, one.deltas)
                case "lost shares":
                    late += _lose_shares(rig, txid, one.deltas)
                    is_whole = False
                case "shares":
                    _by_shares(rig, txid, one.deltas)
                case _:
                    rig.commit(txid, one.deltas)
            if one.commits:
                last, is_whole = one.deltas, True
            if is_whole:
                _write_late(rig, late)
                expected = _oracle([*committed, *([] if last is None else [last])])
                assert rig.values() == expected, (txid, one)
        assert last is not None
        committed.append(last)


def _oracle(batches: Sequence[Deltas]) -> dict[str, Any]:
    folds: tuple[Callable[[Sequence[int]], int], ...] = (sum, min, max)
    found: dict[str, Any] = {}
    for key in KEYS:
        deltas = [batch[key] for batch in batches if key in batch]
        if deltas:
            found[key] = tuple(
                fold(column) for fold, column in zip(folds, zip(*deltas, strict=True), strict=True)
            )
    return found


def _crash(rig: Rig, txid: int, deltas: Deltas) -> None:
    def die(_point: str) -> None:
        raise _CrashError

    try:
        rig.commit(txid, deltas, reached=die)
    except _CrashError:
        return
    raise AssertionError("the commit did not get to the point inside of it")


def _come_back(rig: Rig, txid: int, deltas: Deltas) -> None:
    zombie = rig.next(txid)
    rig.states.raise_fence(rig.next(txid).attempt)
    try:
        rig.commit(txid, deltas, under=zombie)
    except StaleAttemptError:
        return
    raise AssertionError("the fence let an older attempt through")


def _shares(deltas: Deltas) -> list[Deltas]:
    return [{key: delta} for key, delta in deltas.items()]


def _by_shares(rig: Rig, txid: int, deltas: Deltas) -> None:
    """Each key in a share of its own, the last one first; every other share runs twice."""
    under = rig.begin(txid)
    shares = _shares(deltas)[::-1]
    for share in (*shares, *shares[::2]):
        rig.write(under, share)
    rig.end(under)


def _lose_shares(rig: Rig, txid: int, deltas: Deltas) -> list[tuple[TransactionAttempt, Deltas]]:
    """Every other share is written, then the driver dies; the others are still on their way."""
    under = rig.begin(txid)
    shares = _shares(deltas)
    for share in shares[::2]:
        rig.write(under, share)
    return [(under, share) for share in shares[1::2]]


def _write_late(rig: Rig, late: list[tuple[TransactionAttempt, Deltas]]) -> None:
    """Shares of attempts that a newer one has taken the place of."""
    while late:
        under, share = late.pop()
        if rig.spec.semantics is not Semantics.NON_TRANSACTIONAL:
            try:
                rig.write(under, share)
            except StaleAttemptError:
                continue
            raise AssertionError("the fence let a task of an older attempt through")
