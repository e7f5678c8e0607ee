"""A list that is one case fails if one item does, and tells of each."""

from __future__ import annotations

import pytest
from support.lists import each


def test_all_items_run_and_all_failures_are_told_with_their_items() -> None:
    seen = []

    @each(("n", "word"), [(1, "one"), pytest.param(2, "two", id="the second"), (3, "three")])
    @each("sign", [1, -1], ids=["plus", "minus"])
    def test(sign: int, n: int, word: str) -> None:
        seen.append(sign * n)
        assert sign > 0 or n == 1, word
        if n == 3:
            pytest.fail("three")

    with pytest.raises(BaseExceptionGroup, match="2 of 3 failed") as raised:
        test()
    assert seen == [1, -1, 2, -2, 3, -3]
    second, third = raised.value.exceptions
    assert second.__notes__ == ["with n, word = the second"]
    assert third.__notes__ == ["with n, word = 3, 'three'"]
    assert isinstance(second, BaseExceptionGroup)
    assert isinstance(third, BaseExceptionGroup)
    assert [one.__notes__ for one in second.exceptions] == [["with sign = minus"]]
    assert len(third.exceptions) == 2


def test_fixtures_come_in_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    @each("word", ["a", "b"])
    def test(capsys: pytest.CaptureFixture[str], word: str) -> None:
        print(word)
        assert capsys.readouterr().out == f"{word}\n"

    test(capsys=capsys)


def test_an_empty_list_and_marks_are_refused() -> None:
    for values in ([], [pytest.param(1, marks=pytest.mark.soak)]):
        with pytest.raises(ValueError, match="must be items"):
            each("n", values)


def test_a_skip_hides_no_failure_and_a_timeout_ends_the_list() -> None:
    seen = []

    @each("n", range(4))
    def test(n: int) -> None:
        seen.append(n)
        if n == 0:
            pytest.skip("no server")
        if n == 2:
            pytest.fail("Timeout (>300.0s) from pytest-timeout.")
        assert n != 1

    with pytest.raises(BaseExceptionGroup, match="2 of 4 failed"):
        test()
    assert seen == [0, 1, 2]

    @each("n", range(2))
    def skipping(n: int) -> None:
        if n == 0:
            pytest.skip("no server")

    with pytest.raises(pytest.skip.Exception, match="no server"):
        skipping()
