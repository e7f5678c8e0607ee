"""The example that the articles explain the acker with, step by step, and how often zero comes too early.

A spout sends T1 and T2, copies of one tuple, to two bolts. The first bolt emits T3, T4 and T5, anchored to
T1, to a third bolt.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from txstream.plugins.tracked.acker.ids import RootIds, TupleIds
from txstream.plugins.tracked.acker.ledger import AckLedger

SPOUT_TASK = 4


def test_emits_and_acks_as_messages_of_their_own() -> None:
    """As in Storm's first acker: an id is sent when its tuple is emitted, and again when it is acked."""
    ledger = AckLedger()
    (root,) = RootIds().take(1)
    t1, t2, t3, t4, t5 = TupleIds().draw(5)
    ledger.init(root, t1 ^ t2, SPOUT_TASK)
    assert ledger.ack_val(root) == t1 ^ t2
    for value, ack_val in [
        (t3, t1 ^ t2 ^ t3),  # the first bolt emits three tuples
        (t4, t1 ^ t2 ^ t3 ^ t4),
        (t5, t1 ^ t2 ^ t3 ^ t4 ^ t5),
        (t1, t2 ^ t3 ^ t4 ^ t5),  # and acks its input
        (t2, t3 ^ t4 ^ t5),  # the second bolt emits nothing
        (t3, t4 ^ t5),  # the third one acks them one by one
        (t4, t5),
    ]:
        assert not len(ledger.ack(root, value).completed)
        assert ledger.ack_val(root) == ack_val
    completed = ledger.ack(root, t5).completed
    assert (completed.roots.tolist(), completed.tasks.tolist()) == ([root], [SPOUT_TASK])
    assert len(ledger) == 0


def test_an_ack_with_the_xor_of_what_was_emitted_is_one_message() -> None:
    """As in JStorm and in this engine: three messages for the three bolts."""
    ledger = AckLedger()
    (root,) = RootIds().take(1)
    t1, t2, t3, t4, t5 = TupleIds().draw(5)
    ledger.init(root, t1 ^ t2, SPOUT_TASK)
    for value, ack_val in [(t1 ^ t3 ^ t4 ^ t5, t2 ^ t3 ^ t4 ^ t5), (t2, t3 ^ t4 ^ t5)]:
        assert not len(ledger.ack(root, value).completed)
        assert ledger.ack_val(root) == ack_val
    completed = ledger.ack(root, t3 ^ t4 ^ t5).completed
    assert (completed.roots.tolist(), completed.tasks.tolist()) == ([root], [SPOUT_TASK])


@pytest.mark.parametrize(("bits", "trees"), [(8, 20_000), (16, 400_000)])
def test_false_zeros_are_as_frequent_as_derived(bits: int, trees: int) -> None:
    """With so few bits that they happen. `docs/acker.md` derives that a tree's value is zero with a
    probability of about 1 / (2**bits - 1) while m >= 2 of its tuples are open, and never while one is."""
    ledger, roots = AckLedger(), RootIds().take(trees)
    t1, t2, t3, t4, t5 = TupleIds(13, bits=bits).draw(5 * trees).reshape(5, trees)
    early = len(ledger.init(roots, t1 ^ t2, SPOUT_TASK).completed)  # 2 open
    for value in (t1 ^ t3 ^ t4 ^ t5, t2, t3):  # then 4, 3 and 2
        early += len(ledger.ack(roots, value).completed)
    assert not len(ledger.ack(roots, t4).completed)  # 1: its value is an id, which is never 0
    in_time = len(ledger.ack(roots, t5).completed)
    assert early + in_time == trees

    def zero(open_tuples: int) -> float:
        return (1 - zero(open_tuples - 1)) / (2**bits - 1) if open_tuples else 1.0

    expected = trees * (1 - math.prod(1 - zero(open_tuples) for open_tuples in (2, 4, 3, 2)))
    assert abs(early - expected) < 4 * math.sqrt(expected)
    assert np.isclose(zero(4), 1 / (2**bits - 1), rtol=0.01)
