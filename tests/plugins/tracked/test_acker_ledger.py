"""The ledger against a model that keeps every id in a set and never XORs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import ArrayLike
from support.lists import each

from txstream.plugins.tracked.acker.ackers import Ackers, acker_of
from txstream.plugins.tracked.acker.ids import TupleIds, as_numbers, fold
from txstream.plugins.tracked.acker.ledger import AckLedger, Ended, Trees

IDS = [int(number) for number in TupleIds(13).draw(4)]
BUCKETS = 3


def root(slot: int, generation: int = 1) -> int:
    return generation << 32 | slot


def xor(numbers: ArrayLike) -> int:
    return int(np.bitwise_xor.reduce(as_numbers(numbers)))


def pairs(trees: Trees) -> list[tuple[int, int]]:
    return sorted(zip(trees.roots.tolist(), trees.tasks.tolist(), strict=True))


def told(ended: Ended) -> dict[str, list[tuple[int, int]]]:
    return {name: pairs(trees) for name, trees in ended._asdict().items() if len(trees)}


# --- the model ---------------------------------------------------------------------------------------------


@dataclass
class Entry:
    open_ids: set[int] = field(default_factory=set)
    task: int | None = None
    failed: bool = False
    age: int | None = 0  # None: it timed out before its init, which will fail it


class Model:
    """Storm's rules over a dict of sets."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.least: dict[int, int] = {}

    def _entries(self, roots: list[int]) -> list[Entry | None]:
        """The entry of each root: a new one if it has none, None if the root is stale."""
        for number in roots:
            slot, generation = number & 0xFFFFFFFF, number >> 32
            if generation > self.least.get(slot, 1):
                self.entries.pop(root(slot, self.least.get(slot, 1)), None)
                self.least[slot] = generation
        current = [number >> 32 == self.least.get(number & 0xFFFFFFFF, 1) for number in roots]
        return [
            self.entries.setdefault(number, Entry()) if fits else None
            for number, fits in zip(roots, current, strict=True)
        ]

    def _ended(self) -> dict[str, list[tuple[int, int]]]:
        ended: dict[str, list[tuple[int, int]]] = {}
        for number, entry in sorted(self.entries.items()):
            if entry.task is not None and (entry.failed or not entry.open_ids):
                ended.setdefault("failed" if entry.failed else "completed", []).append((number, entry.task))
                self._end(number)
        return ended

    def _end(self, number: int) -> None:
        del self.entries[number]
        self.least[number & 0xFFFFFFFF] = (number >> 32) + 1

    def init(self, messages: list[tuple[int, set[int], int]]) -> dict[str, list[tuple[int, int]]]:
        entries = self._entries([number for number, _, _ in messages])
        for (_, ids, task), entry in zip(messages, entries, strict=True):
            if entry is not None and entry.task is None:
                entry.task = task
                entry.open_ids ^= ids
        return self._ended()

    def ack(self, messages: list[tuple[int, set[int]]]) -> dict[str, list[tuple[int, int]]]:
        entries = self._entries([number for number, _ in messages])
        for (_, ids), entry in zip(messages, entries, strict=True):
            if entry is not None:
                entry.open_ids ^= ids
        return self._ended()

    def fail(self, roots: list[int]) -> dict[str, list[tuple[int, int]]]:
        for entry in self._entries(roots):
            if entry is not None:
                entry.failed = True
        return self._ended()

    def rotate(self) -> dict[str, list[tuple[int, int]]]:
        ended = []
        for number, entry in sorted(self.entries.items()):
            if entry.age is None:
                continue
            entry.age += 1
            if entry.age < BUCKETS:
                continue
            if entry.task is None:
                entry.failed, entry.age = True, None
            else:
                ended.append((number, entry.task))
                self._end(number)
        return {"timed_out": ended} if ended else {}

    def ages(self) -> list[int]:
        ages = [entry.age for entry in self.entries.values()]
        return [ages.count(age) for age in range(BUCKETS)]


id_sets = st.sets(st.sampled_from(IDS))
roots = st.builds(root, st.integers(0, 3), st.integers(1, 3))
with_values = st.lists(st.tuples(roots, id_sets), max_size=5)
bare = st.lists(roots, max_size=5)
steps = st.one_of(
    st.tuples(st.just("init"), with_values),
    st.tuples(st.just("ack"), with_values),
    st.tuples(st.just("fail"), bare),
    st.tuples(st.just("rotate"), st.none()),
)


@pytest.mark.parametrize("ackers", [0, 1, 2, 3])
@given(st.lists(steps, max_size=30))
@settings(max_examples=50, deadline=None)
def test_the_ledger_answers_as_a_dict_of_sets(ackers: int, script: list[tuple[str, Any]]) -> None:
    """Messages in any order, for any generation, repeated or not, with time passing between them."""
    ledger = Ackers(ackers, buckets=BUCKETS) if ackers else AckLedger(buckets=BUCKETS)
    model = Model()
    for name, messages in script:
        if name == "rotate":
            assert told(ledger.rotate()) == model.rotate()
        elif name == "fail":
            assert told(ledger.fail(messages)) == model.fail(messages)
        else:
            numbers, values = [number for number, _ in messages], [xor(list(ids)) for _, ids in messages]
            if name == "ack":
                assert told(ledger.ack(numbers, values)) == model.ack(messages)
            else:
                # A root has one init; a repeated one says the same.
                once = {number: (ids, number % 5) for number, ids in reversed(messages)}
                values = [xor(list(once[number][0])) for number in numbers]
                tasks = [once[number][1] for number in numbers]
                expected = model.init([(number, *once[number]) for number in numbers])
                assert told(ledger.init(numbers, values, tasks)) == expected
        assert ledger.ages() == model.ages()
        assert len(ledger) == sum(model.ages())


# --- trees -------------------------------------------------------------------------------------------------


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[tuple[str, int, int]], int]:
    """The messages about some trees, (kind, root, value) in any order, and the number of trees."""
    ids = iter(TupleIds(draw(st.integers(0, 2**32))).draw(200).tolist())
    count = draw(st.integers(1, 6))
    messages = []
    for slot in range(count):
        waiting = [next(ids) for _ in range(draw(st.integers(0, 3)))]
        messages.append(("init", root(slot), xor(waiting)))
        for _ in range(draw(st.integers(0, 6))):
            if not waiting:
                break
            children = [next(ids) for _ in range(draw(st.integers(0, 3)))]
            messages.append(("ack", root(slot), xor([waiting.pop(), *children])))
            waiting += children
        messages += [("ack", root(slot), number) for number in waiting]
    return draw(st.permutations(messages)), count


@given(trees(), st.integers(1, 3))
def test_trees_whose_messages_all_came_are_completed_in_whatever_order(
    tree: tuple[list[tuple[str, int, int]], int], ackers: int
) -> None:
    messages, count = tree
    ledger = Ackers(ackers)
    completed: list[tuple[int, int]] = []
    for number, (kind, of, value) in enumerate(messages):
        ended = ledger.init(of, value, 7) if kind == "init" else ledger.ack(of, value)
        completed += pairs(ended.completed)
        assert not {of for of, _ in completed} & {of for _, of, _ in messages[number + 1 :]}
    assert sorted(completed) == [(root(slot), 7) for slot in range(count)]
    assert len(ledger) == 0


@given(trees())
def test_without_its_init_or_one_ack_no_tree_is_completed(
    tree: tuple[list[tuple[str, int, int]], int],
) -> None:
    messages, _ = tree
    kept_back = {of: kind for kind, of, value in messages if value or kind == "init"}
    ledger = AckLedger()
    for kind, of, value in messages:
        if kept_back.get(of) == kind:
            del kept_back[of]
        else:
            ended = ledger.init(of, value, 7) if kind == "init" else ledger.ack(of, value)
            assert not told(ended)
    for _ in range(BUCKETS):
        assert not ledger.rotate().completed


@given(st.lists(st.tuples(roots, st.integers(0, 2**64 - 1)), max_size=40))
def test_folding_leaves_each_root_once_with_the_xor_of_its_values(messages: list[tuple[int, int]]) -> None:
    expected: dict[int, int] = {}
    for number, value in messages:
        expected[number] = expected.get(number, 0) ^ value
    folded, values = fold([number for number, _ in messages], [value for _, value in messages])
    assert dict(zip(folded.tolist(), values.tolist(), strict=True)) == expected
    assert len(folded) == len(expected)


def test_large_calls_complete_every_tree_once_and_only_when_its_last_message_came() -> None:
    """Several portions in a call, with the messages of a tree spread over them, and three ackers."""
    random = np.random.default_rng(13)
    numbers = np.array([root(slot) for slot in range(20_000)], np.uint64)
    t1, t2, t3 = (TupleIds([13, number]).draw(len(numbers)) for number in range(3))
    messages = np.stack([np.concatenate(column) for column in ([numbers] * 3, [t1 ^ t3, t2, t3])])
    messages = random.permutation(messages, axis=1)
    ledger = Ackers(3)
    assert not told(ledger.ack(messages[0, :-100], messages[1, :-100]))
    last = set(messages[0, -100:].tolist())
    completed = ledger.init(numbers, t1 ^ t2, numbers % 7).completed
    assert set(completed.roots.tolist()) == set(numbers.tolist()) - last
    late = ledger.ack(messages[0, -100:], messages[1, -100:]).completed
    assert set(late.roots.tolist()) == last
    assert len(completed) + len(late) == len(numbers)
    for trees in (completed, late):
        assert (trees.tasks == trees.roots % 7).all()


def test_a_root_whose_messages_span_portions_fails_and_starts_once() -> None:
    ledger, numbers = AckLedger(), [root(slot % 10) for slot in range(20_000)]
    assert not told(ledger.init(numbers, 5, 3))
    assert ledger.ages() == [10, 0, 0]
    assert len(ledger.fail(numbers).failed) == 10


# --- single rules ------------------------------------------------------------------------------------------


def test_zero_alone_is_not_completion() -> None:
    ledger = AckLedger()
    assert not told(ledger.ack(root(0), 5))
    assert not told(ledger.ack(root(0), 5))
    assert ledger.ack_val(root(0)) == 0
    assert told(ledger.init(root(0), 0, 3)) == {"completed": [(root(0), 3)]}


def test_two_acks_of_a_tree_in_one_call_complete_it_once() -> None:
    ledger = AckLedger()
    ledger.init(root(0), 5 ^ 6, 3)
    assert told(ledger.ack([root(0), root(0)], [5, 6])) == {"completed": [(root(0), 3)]}


def test_a_tree_that_failed_stays_failed_when_its_init_comes_last() -> None:
    ledger = AckLedger()
    assert not told(ledger.fail(root(0)))
    assert not told(ledger.ack(root(0), 5))
    assert told(ledger.init(root(0), 5, 3)) == {"failed": [(root(0), 3)]}
    assert not told(ledger.init(root(0), 5, 3))


def test_a_message_for_an_ended_tree_or_an_older_generation_is_ignored() -> None:
    ledger = AckLedger()
    ledger.init(root(0), 5, 3)
    assert told(ledger.ack(root(0), 5)) == {"completed": [(root(0), 3)]}
    for late in (ledger.ack(root(0), 5), ledger.fail(root(0)), ledger.init(root(0), 5, 3)):
        assert not told(late)
    ledger.init(root(0, 2), 6, 4)
    ledger.ack(root(0), 6)
    assert ledger.ack_val(root(0, 2)) == 6
    assert told(ledger.fail([root(0), root(0, 2)])) == {"failed": [(root(0, 2), 4)]}


def test_an_entry_without_init_expires_and_its_init_is_refused() -> None:
    ledger = AckLedger(buckets=2)
    ledger.ack(root(0), 5)
    assert not told(ledger.rotate())
    assert ledger.ages() == [0, 1]
    assert not told(ledger.rotate())
    assert len(ledger) == 0
    assert told(ledger.init(root(0), 5, 3)) == {"failed": [(root(0), 3)]}


def test_no_root_is_root_0() -> None:
    ledger = AckLedger()
    ledger.init(root(0), 5, 3)
    ledger.ack(0, 5)
    ledger.fail(0)
    assert ledger.ack_val(root(0)) == 5
    assert ledger.ack_val(0) is None


def test_an_acker_that_is_lost_forgets_its_trees_and_no_others() -> None:
    ackers, numbers = Ackers(4), np.array([root(slot) for slot in range(100)], np.uint64)
    ackers.init(numbers, numbers, 1)
    ackers.lose(2)
    completed = ackers.ack(numbers, numbers).completed
    assert set(completed.roots.tolist()) == set(numbers[acker_of(numbers, 4) != 2].tolist())
    assert 0 < len(completed) < 100


@each("tasks", [1, 2, 4, 8])
@each("ackers", [2, 4, 5])
def test_ackers_have_equal_shares_also_of_one_task_of_several(tasks: int, ackers: int) -> None:
    numbers = np.array([root(slot) for slot in range(0, 10_000 * tasks, tasks)], np.uint64)
    shares = np.bincount(acker_of(numbers, ackers), minlength=ackers)
    assert shares.min() > 0.9 * 10_000 / ackers


def test_a_ledger_reads_signed_numbers_as_their_bits() -> None:
    ledger, number = AckLedger(), root(7, 2**31 + 5)
    signed = np.array([number], np.uint64).view(np.int64)
    assert told(ledger.init(signed, np.array([-3]), 0)) == {}
    assert ledger.ack_val(number) == 2**64 - 3
    assert told(ledger.ack(signed, np.array([-3]))) == {"completed": [(number, 0)]}


def test_impossible_numbers_of_buckets_and_ackers_are_refused() -> None:
    with pytest.raises(ValueError, match="buckets=1"):
        AckLedger(buckets=1)
    with pytest.raises(ValueError, match="ackers=0"):
        Ackers(0)
