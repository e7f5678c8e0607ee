"""The examples in docs/map-state.md run as printed."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from support.guide import DOCS, examples, load

GUIDE = DOCS / "map-state.md"


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    return load(GUIDE, tmp_path_factory.mktemp("guide"))


def test_the_examples_do_what_they_say(guide: ModuleType) -> None:
    found = dict(examples(guide))
    assert {function.__name__ for function in found} == {"test_a_record_is_broken", "test_high_scores"}
    for function, calls in found.items():
        for call in calls:
            function(**call)


def test_its_links_lead_somewhere() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    links = [part.partition(")")[0] for part in text.split("](")[1:]]
    assert links
    assert not [link for link in links if not (DOCS / link).exists()]
