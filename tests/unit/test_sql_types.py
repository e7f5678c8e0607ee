"""Random values of every type in a store; the promises try those that are likely to go wrong. The stores here
are SQLite and memory; the tests of each server run the same classes."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from support.kinds import KINDS, Kind
from support.states import Rig, word_table

from txstream.api.reducers import Count, Last, Max, Min, Put, Reducer, Sum, custom
from txstream.core.errors import StateTableError, StateValueError
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid
from txstream.plugins.proof.state_suite.column_types import scaled
from txstream.plugins.proof.state_suite.life import by_key, to_table
from txstream.plugins.proof.stores.memory import forget
from txstream.state import StateBackend, open_database

NUMERIC = [kind for kind in KINDS if pa.types.is_integer(kind.arrow) or pa.types.is_decimal(kind.arrow)]
_NUMBERS = st.one_of(st.none(), st.integers(-100, 100))
_DELTAS = st.dictionaries(st.sampled_from("abc"), st.tuples(_NUMBERS, _NUMBERS, _NUMBERS), max_size=3)
FEW = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))

_numbers = itertools.count(1)


@pytest.fixture(params=["sqlite", "memory"])
def url(request: pytest.FixtureRequest, sqlite_url: str, unique: str) -> Iterator[str]:
    yield sqlite_url if request.param == "sqlite" else f"memory://{unique}"
    forget(unique)


def rig_of(database: StateBackend, url: str, **options: Any) -> Rig:
    """Return a topology with a table of its own."""
    name = f"types_{next(_numbers)}"
    return Rig(database, url, word_table(name, **options), topology=name).join()


def read(rig: Rig, keys: Iterable[Any], *, before: int) -> dict[Any, Any]:
    """Return key -> value as they were before batch `before`; several columns are a tuple."""
    wanted = to_table(rig.spec, dict.fromkeys(keys, ())).select(rig.spec.state.key_names)
    return by_key(rig.spec, rig.database.read(rig.spec, wanted, before=Txid(before)))


class Patient:
    @pytest.fixture
    def database(self, url: str) -> Iterator[StateBackend]:
        """Its timeout is long, since a busy machine may stall within a transaction of so many values."""
        with closing(open_database(url, message_timeout_seconds=30.0)) as database:
            yield database


class TestTypes(Patient):
    cannot_keep: ClassVar[frozenset[str]] = frozenset()
    """The types that the store refuses, and "infinity" if it refuses that."""

    def test_what_it_keeps(self, database: StateBackend, url: str) -> None:
        for kind in KINDS:
            for options in ({"key": f"k {kind}"}, {"value": f"v {kind}", "reducers": {"v": Put()}}):
                if str(kind) in self.cannot_keep:
                    told = re.escape(f"of type {kind} exactly; use another type")
                    with pytest.raises(StateTableError, match=told):
                        rig_of(database, url, **options)
                else:
                    rig_of(database, url, **options)
        for ddl in ("float", "double"):
            keyed = rig_of(database, url, key=f"k {ddl}")
            valued = rig_of(database, url, value=f"v {ddl}", reducers={"v": Max("v")})
            rows: list[tuple[Rig, Any]] = [(keyed, {math.inf: 1}), (valued, {"a": -math.inf})]
            for rig, infinite in rows:
                if "infinity" in self.cannot_keep:
                    with pytest.raises(StateValueError, match=r"of table .* got -?inf"):
                        rig.commit(1, infinite)
                else:
                    rig.commit(1, infinite)
                    assert read(rig, infinite, before=2) == infinite

    @pytest.mark.parametrize("kind", KINDS, ids=str)
    def test_anything_is_read_back(self, database: StateBackend, url: str, kind: Kind) -> None:
        if str(kind) in self.cannot_keep:
            return  # as the test above shows
        rig = rig_of(database, url, key=f"k {kind}", value=f"v {kind}", reducers={"v": Put()})
        known: dict[Any, Any] = {}
        txids = itertools.count(1)

        @given(st.dictionaries(kind.any, kind.any, max_size=20))
        @FEW
        def check(rows: dict[Any, Any]) -> None:
            txid = next(txids)
            rig.commit(txid, rows)
            now = {**known, **rows}
            assert read(rig, now, before=txid + 1) == now
            assert read(rig, now, before=txid) == known
            known.update(rows)

        check()

    @pytest.mark.parametrize("kind", NUMERIC, ids=str)
    def test_sums_are_exact(self, database: StateBackend, url: str, kind: Kind) -> None:
        if str(kind) in self.cannot_keep:
            return
        rig = rig_of(database, url, value=f"n {kind}")
        examples = itertools.count(1)

        @given(st.lists(st.tuples(kind.any, kind.any), min_size=1, max_size=3))
        @FEW
        def check(pairs: list[tuple[Any, Any]]) -> None:
            example = next(examples)
            firsts = {f"{example}-{place}": first for place, (first, _) in enumerate(pairs)}
            seconds = {f"{example}-{place}": second for place, (_, second) in enumerate(pairs)}
            rig.commit(2 * example - 1, firsts)
            sums = {key: unscaled(first) + unscaled(seconds[key]) for key, first in firsts.items()}
            if all(fits(total, kind.arrow) for total in sums.values()):
                rig.commit(2 * example, seconds)
            else:
                with pytest.raises(StateValueError, match="cannot hold"):
                    rig.commit(2 * example, seconds)
                rig.commit(2 * example, None)
                sums = {key: unscaled(first) for key, first in firsts.items()}
            found = read(rig, sums, before=2 * example + 1)
            assert {key: unscaled(value) for key, value in found.items()} == sums

        check()


def unscaled(value: Any) -> int:
    if not isinstance(value, Decimal):
        return int(value)
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    return -number if sign else number


def fits(total: int, data_type: pa.DataType) -> bool:
    if pa.types.is_decimal(data_type):
        return bool(abs(total) < 10**data_type.precision)
    return bool(-(1 << (data_type.bit_width - 1)) <= total < 1 << (data_type.bit_width - 1))


def choosy(left: int, right: int) -> Any:
    if right == 13:
        raise ZeroDivisionError("by hand")
    return {0: None, 7: "seven", 8: 1 << 70, 9: 0.5}.get(right, left + right)


class TestReducers(Patient):
    @pytest.mark.parametrize("semantics", list(Semantics), ids=str)
    @given(history=st.lists(st.tuples(_DELTAS, st.lists(_DELTAS, max_size=2)), min_size=1, max_size=5))
    @FEW
    def test_functions_give_what_built_in_reducers_give(
        self,
        database: StateBackend,
        url: str,
        semantics: Semantics,
        history: list[tuple[Mapping[str, Any], list[Mapping[str, Any]]]],
    ) -> None:
        """They stand side by side in one table and agree, whatever is tried, replayed or null."""
        reducers = {
            "n": Count(),
            "total": Sum("x"),
            "also_total": custom(operator.add, 0, field="x"),
            "least": Min("y"),
            "also_least": custom(min, None, field="y"),
            "most": Max("z"),
            "also_most": custom(max, None, field="z"),
        }
        value = (
            "n bigint, total bigint, also_total bigint, least int, also_least int, most int, also_most int"
        )
        rig = rig_of(database, url, value=value, reducers=reducers, semantics=semantics)
        for txid, (deltas, failed) in enumerate(history, start=1):
            # A transactional replay holds the same tuples; without semantics, nothing is replayed.
            replays = failed if semantics is Semantics.OPAQUE else [deltas] * len(failed)
            tried = [deltas] if semantics is Semantics.NON_TRANSACTIONAL else [*replays, deltas]
            for attempted in tried:
                twice = {key: (1, x, x, y, y, z, z) for key, (x, y, z) in attempted.items()}
                nulls = {key for key, row in twice.items() if None in row}
                known = read(rig, "abc", before=txid)
                if semantics is Semantics.OPAQUE and nulls - known.keys():
                    with pytest.raises(StateValueError, match="is NOT NULL and got only nulls"):
                        rig.commit(txid, twice)
                    twice = {key: row for key, row in twice.items() if key not in nulls - known.keys()}
                rig.commit(txid, twice)
                for row in read(rig, "abc", before=txid + 1).values():
                    assert (row[1], row[3], row[5]) == (row[2], row[4], row[6])

    def test_a_function_is_called_once_per_key(self, database: StateBackend, url: str) -> None:
        """It is not called for a row that already holds this batch."""
        calls: list[tuple[int, int]] = []

        def counted(left: int, right: int) -> int:
            calls.append((left, right))
            return left * right

        reducers = {"n": custom(counted, 1)}
        rig = rig_of(database, url, reducers=reducers, semantics=Semantics.TRANSACTIONAL)
        rig.commit(1, {"a": 2, "b": 3})
        rig.commit(2, {"a": 5})
        rig.commit(2, {"a": 5})
        assert read(rig, "ab", before=3) == {"a": 10, "b": 3}
        assert calls == [(2, 5)]

    @pytest.mark.parametrize(
        ("ddl", "delta", "answer", "expected"),
        [
            ("bigint", 13, None, r"custom\(choosy, .*ZeroDivisionError: by hand"),
            ("bigint", 0, None, r"custom\(choosy, .*None"),
            ("bigint", 7, None, r"\(bigint\) cannot hold .*seven"),
            ("bigint", 8, None, r"\(bigint\) cannot hold .*1180591620717411303424"),
            ("bigint", 9, None, r"\(bigint\) cannot hold .*0\.5"),
            ("double", 1.0, math.nan, "nan"),
            ("string", "x", "a\0", "has the character NUL"),
            ("decimal(3,1)", Decimal("0.1"), Decimal("100.0"), r"\(decimal\(3,1\)\) cannot hold .*Decimal"),
            ("decimal(3,1)", Decimal("0.1"), Decimal("0.15"), r"\(decimal\(3,1\)\) cannot hold .*Decimal"),
        ],
    )
    def test_what_a_function_does_wrong_is_told(
        self, database: StateBackend, url: str, ddl: str, delta: Any, answer: Any, expected: str
    ) -> None:
        reducer = custom(choosy if answer is None else lambda left, right: answer, None)
        rig = rig_of(database, url, value=f"n {ddl}", reducers={"n": reducer})
        first = {"a": 5 if answer is None else delta}
        rig.commit(1, first)
        with pytest.raises(StateValueError, match=f"'n'.*{expected}") as told:
            rig.commit(2, {"a": delta, "b": delta})
        if answer is None:
            assert f"table '{rig.spec.state.table}', key word='a'" in str(told.value)
        assert read(rig, "ab", before=3) == first

    @pytest.mark.parametrize("semantics", list(Semantics), ids=str)
    @pytest.mark.parametrize("reducer", [Min("x"), Last("x", by="t"), custom(max, None, field="x")], ids=str)
    def test_a_batch_of_nulls_alone_changes_no_value_of_any_type(
        self, database: StateBackend, url: str, reducer: Reducer, semantics: Semantics
    ) -> None:
        """In a statement, a column of nothing but nulls has no type."""
        # MySQL has at most 30 decimals.
        kinds = [kind for kind in KINDS if str(kind) != "decimal(38,38)"]
        kinds.append(Kind("decimal(30,30)", [scaled(1 - 10**30, 30), scaled(1, 30)], st.nothing()))
        columns = {f"v{place}": kind for place, kind in enumerate(kinds)}
        rig = rig_of(
            database,
            url,
            value=", ".join(["n bigint", *(f"{name} {kind}" for name, kind in columns.items())]),
            reducers={"n": Count(), **dict.fromkeys(columns, reducer)},
            semantics=semantics,
        )
        rows = {
            f"{at:03}": (1, *(kind.edges[at % len(kind.edges)] for kind in kinds))
            for at in range(max(len(kind.edges) for kind in kinds))
        }
        rig.commit(1, rows)
        rig.commit(2, {key: (1, *[None] * len(columns)) for key in rows})
        assert read(rig, rows, before=3) == {key: (2, *row[1:]) for key, row in rows.items()}
