"""Keys and values of a store as text: they read back as they were, types included."""

from __future__ import annotations

import math
from datetime import UTC
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from txstream.plugins.proof.stores.documents import from_text, to_text

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from(["$", "$tuple", "$dict", "\U0010ffff", "\0"]),
    st.binary(max_size=8),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
)
names = st.one_of(st.text(max_size=4), st.sampled_from(["$tuple", "$dict", "$bytes", "$"]))
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(names.filter(lambda name: name.isprintable()), inner, max_size=4),
    ),
    max_leaves=12,
)


def types(tree: Any) -> Any:
    if isinstance(tree, (list, tuple)):
        return (type(tree), [types(item) for item in tree])
    if isinstance(tree, dict):
        return {name: types(item) for name, item in tree.items()}
    return type(tree)


@given(tree=trees)
def test_what_is_written_is_read(tree: Any) -> None:
    text = to_text(tree)
    assert text.isascii()
    assert "\n" not in text
    found = from_text(text)
    assert found == tree
    assert types(found) == types(tree)


def test_what_equality_does_not_see() -> None:
    assert math.copysign(1, from_text(to_text(-0.0))) == -1
    assert from_text(to_text(math.inf)) == math.inf
    assert str(from_text(to_text(Decimal("1.50")))) == "1.50"


def test_what_cannot_be_kept() -> None:
    with pytest.raises(TypeError, match="a set cannot be kept"):
        to_text([{1}])
    with pytest.raises(ValueError, match=r"there is no type '\$set'"):
        from_text('{"$set":[1]}')
