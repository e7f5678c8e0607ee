"""Topologies of tracked tuples, in this process: trees, anchors, acks, and the three ways to do without."""

from __future__ import annotations

import pytest
from support.tracked import Lines, RichSplit, Split, words

from txstream.testing import TrackedTest


@pytest.mark.parametrize("split", [Split(), RichSplit()])
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("ackers", [1, 3])
def test_a_line_is_acked_when_all_of_its_words_are(split: Split | RichSplit, width: int, ackers: int) -> None:
    with TrackedTest(words(["a b c", "d", ""], split, ackers=ackers), width=width) as test:
        lines: Lines = test.spout("lines")
        assert test.step()
        assert lines.acked == [0]
        test.run()
        assert sorted(lines.acked) == [0, 1, 2]
        assert sorted(test.emitted("upper")) == [("A",), ("B",), ("C",), ("D",)]
        assert not test.open_messages("lines")
    assert lines.calls == ["open", "activate", "deactivate", "close"]
    assert lines.failed == []
