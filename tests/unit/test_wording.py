"""Nouns in sentences: their articles and plurals."""

from __future__ import annotations

from support.lists import each

from txstream.cli.factory import _a
from txstream.core.wording import a, counted
from txstream.plugins.tracked.report import TrackedReport


@each(
    ("noun", "told"),
    [
        *(("int", "an int"), ("str", "a str"), ("OpaqueSpout", "an OpaqueSpout"), ("Event", "an Event")),
        *(("UUID", "a UUID"), ("UserBolt", "a UserBolt"), ("Unknown", "an Unknown"), ("", "a ")),
    ],
)
def test_a_noun_has_its_article(noun: str, told: str) -> None:
    assert a(noun) == told


def test_one_is_no_plural() -> None:
    assert (counted(1, "tuple"), counted(2_000, "tuple")) == ("1 tuple", "2,000 tuples")
    assert counted(0, "batch", "batches") == "0 batches"


def test_where_users_meet_them() -> None:
    assert _a(3) == "an int"
    report = TrackedReport(
        "t", "u", "tracked", 1, 1, 1, batches=1, records=1, failed_attempts=0, replayed_attempts=0,
        recovered_batches=0, seconds=1.0, caught_up=True, acked=1,
    )  # fmt: skip
    assert report.in_words().startswith("t: 1 tuple in 1 micro-batch, 1 tree acked, 0 failed")
