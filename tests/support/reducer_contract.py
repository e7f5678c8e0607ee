"""How each reducer is merged into what a store holds: the built-in ones, `Last`, functions of the user's.

Subclasses have a fixture `url`, of any scope. A store is reached through `open_database` and the methods of
`StateBackend` alone.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from support.type_contract import KINDS, Kind, TypeFixtures, read
from txstream.api.errors import StateValueError, TxidRegressionError
from txstream.api.reducers import Count, Last, Max, Min, Put, Reducer, Sum, custom
from txstream.semantics import Semantics
from txstream.state import StateBackend

OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL

_NUMBERS = st.one_of(st.none(), st.integers(-100, 100))
_DELTAS = st.dictionaries(st.sampled_from("abc"), st.tuples(_NUMBERS, _NUMBERS, _NUMBERS), max_size=3)

Row = tuple[Any, ...]

FRACTIONS = Kind("decimal(30,30)", [Decimal("-0." + 30 * "9"), Decimal("0." + 29 * "0" + "1")], st.nothing())


def product(left: int, right: int) -> int:
    return left * right


def choosy(left: int, right: int) -> Any:
    if right == 13:
        raise ZeroDivisionError("by hand")
    return {0: None, 7: "seven", 8: 1 << 70, 9: 0.5}.get(right, left + right)


class ReducerContract(TypeFixtures):
    @pytest.mark.parametrize("semantics", list(Semantics), ids=str)
    @given(
        history=st.lists(st.tuples(_DELTAS, st.lists(_DELTAS, max_size=2)), min_size=1, max_size=5),
    )
    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
    def test_functions_give_what_built_in_reducers_give(
        self,
        database: StateBackend,
        url: str,
        semantics: Semantics,
        history: list[tuple[Mapping[str, Row], list[Mapping[str, Row]]]],
    ) -> None:
        """Side by side in one table, whatever is tried, replayed, and null."""
        rig = self.rig(
            database,
            url,
            value="n bigint, total bigint, also_total bigint, "
            "least int, also_least int, most int, also_most int",
            reducers={
                "n": Count(),
                "total": Sum("x"),
                "also_total": custom(operator.add, 0, field="x"),
                "least": Min("y"),
                "also_least": custom(min, None, field="y"),
                "most": Max("z"),
                "also_most": custom(max, None, field="z"),
            },
            semantics=semantics,
        )
        for txid, (deltas, failed) in enumerate(history, start=1):
            # A transactional replay holds the same tuples; one that has no semantics is never replayed.
            replays = failed if semantics is OPAQUE else [deltas] * len(failed)
            tried = [deltas] if semantics is Semantics.NON_TRANSACTIONAL else [*replays, deltas]
            for attempted in tried:
                twice = {key: (1, x, x, y, y, z, z) for key, (x, y, z) in attempted.items()}
                nulls = {key for key, row in twice.items() if None in row}
                known = read(rig, "abc", before=txid)
                if semantics is OPAQUE and nulls - known.keys():
                    with pytest.raises(StateValueError, match="is NOT NULL and got only nulls"):
                        rig.commit(txid, twice)
                    twice = {key: row for key, row in twice.items() if key not in nulls - known.keys()}
                rig.commit(txid, twice)
                for row in read(rig, "abc", before=txid + 1).values():
                    assert (row[1], row[3], row[5]) == (row[2], row[4], row[6])

    def test_a_function_in_an_opaque_table(self, database: StateBackend, url: str) -> None:
        rig = self.rig(database, url, reducers={"n": custom(product, 1)})
        rig.commit(1, {"a": 2, "b": 3})
        rig.commit(2, {"a": 5, "c": 7})
        assert read(rig, "abc", before=3) == {"a": 10, "b": 3, "c": 7}
        rig.commit(2, {"a": 11, "b": 4})  # a replay with other tuples
        assert read(rig, "abc", before=3) == {"a": 22, "b": 12}
        assert read(rig, "abc", before=2) == {"a": 2, "b": 3}
        rig.commit(3, {"a": 3, "c": 1})
        assert read(rig, "abc", before=4) == {"a": 66, "b": 12, "c": 1}

    def test_a_function_in_a_transactional_table(self, database: StateBackend, url: str) -> None:
        calls: list[tuple[int, int]] = []

        def counted(left: int, right: int) -> int:
            calls.append((left, right))
            return left * right

        rig = self.rig(database, url, reducers={"n": custom(counted, 1)}, semantics=TRANSACTIONAL)
        rig.commit(1, {"a": 2, "b": 3})
        rig.commit(2, {"a": 5})
        rig.commit(2, {"a": 5})
        assert read(rig, "ab", before=3) == {"a": 10, "b": 3}
        assert calls == [(2, 5)]  # once per key, and not for a row that holds this batch
        with pytest.raises(TxidRegressionError, match="key word='a'"):
            rig.commit(1, {"a": 5, "b": 5})
        assert read(rig, "ab", before=3) == {"a": 10, "b": 3}

    @pytest.mark.parametrize("semantics", [OPAQUE, TRANSACTIONAL], ids=str)
    def test_a_share_that_two_tasks_write_side_by_side_counts_once(
        self, database: StateBackend, url: str, semantics: Semantics
    ) -> None:
        """Both have read what was there, where the store lets them, before either writes."""
        both = threading.Barrier(2)

        def slow(left: int, right: int) -> int:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.2)
            return left * right

        rig = self.rig(database, url, reducers={"n": custom(slow, 1)}, semantics=semantics)
        rig.commit(1, {"a": 2})
        under = rig.begin(2)
        with ThreadPoolExecutor(2) as pool:
            for share in [pool.submit(rig.write, under, {"a": 5, "b": 7}) for _ in range(2)]:
                assert share.result(30) == 2
        rig.write(under, {"a": 5, "b": 7})
        rig.end(under, 2)
        assert read(rig, "ab", before=3) == {"a": 10, "b": 7}

    @pytest.mark.parametrize("semantics", list(Semantics), ids=str)
    @pytest.mark.parametrize(
        ("delta", "expected"),
        [
            (13, r"custom\(choosy, .*ZeroDivisionError: by hand"),
            (0, r"custom\(choosy, .*None"),
            (7, r"\(bigint\) cannot hold .*seven"),
            (8, r"\(bigint\) cannot hold .*1180591620717411303424"),
            (9, r"\(bigint\) cannot hold .*0\.5"),
        ],
    )
    def test_what_a_function_does_wrong_is_told_with_its_key(
        self, database: StateBackend, url: str, semantics: Semantics, delta: int, expected: str
    ) -> None:
        rig = self.rig(
            database,
            url,
            value="m bigint, n bigint",
            reducers={"m": Sum("m"), "n": custom(choosy, None)},
            semantics=semantics,
        )
        rows = {"a": (1, 5), "b": (1, 5)}
        rig.commit(1, rows)
        table = rig.spec.state.table
        with pytest.raises(StateValueError, match=f"table '{table}', key word='b'.*'n'.*{expected}"):
            rig.commit(2, {"a": (1, 1), "b": (1, delta)})
        # The same batch without it is stored as if nothing had happened.
        assert read(rig, "ab", before=3) == rows
        rig.commit(2, {"a": (1, 1)})
        assert read(rig, "ab", before=3) == {"a": (2, 6), "b": (1, 5)}

    def test_functions_over_every_kind_of_value(self, database: StateBackend, url: str) -> None:
        rig = self.rig(
            database,
            url,
            value="t string, b binary, f double, d decimal(38,2), w boolean, a date",
            reducers={
                "t": custom(operator.add, ""),
                "b": custom(operator.add, b""),
                "f": custom(operator.mul, 1.0),
                "d": custom(max, None),
                "w": custom(operator.xor, False),
                "a": custom(min, None),
            },
        )
        huge = Decimal("9" * 36 + ".99")
        rig.commit(1, {"x": ("ä", b"\0", 0.5, Decimal("-0.05"), True, date(2026, 1, 2))})
        rig.commit(2, {"x": ("🦀", b"'", 0.5, huge, True, date(2026, 1, 1))})
        assert read(rig, ["x"], before=3) == {"x": ("ä🦀", b"\0'", 0.25, huge, False, date(2026, 1, 1))}

    @pytest.mark.parametrize(
        ("ddl", "delta", "answer", "expected"),
        [
            ("double", 1.0, float("nan"), "nan"),
            ("string", "x", "a\0", "has the character NUL"),
            ("decimal(3,1)", Decimal("0.1"), Decimal("100.0"), r"\(decimal\(3,1\)\) cannot hold .*Decimal"),
            ("decimal(3,1)", Decimal("0.1"), Decimal("0.15"), r"\(decimal\(3,1\)\) cannot hold .*Decimal"),
        ],
        ids=["nan", "nul", "digits", "scale"],
    )
    def test_answers_that_no_store_keeps(
        self, database: StateBackend, url: str, ddl: str, delta: Any, answer: Any, expected: str
    ) -> None:
        reducer = custom(lambda left, right: answer, None)
        rig = self.rig(database, url, value=f"n {ddl}", reducers={"n": reducer})
        rig.commit(1, {"a": delta})
        with pytest.raises(StateValueError, match=f"'n'.*{expected}"):
            rig.commit(2, {"a": delta, "b": delta})
        assert read(rig, "ab", before=3) == {"a": delta}

    def test_the_last_one_of_a_later_batch_wins(self, database: StateBackend, url: str) -> None:
        """Whatever order it was told by; and a null is no value."""
        rig = self.rig(
            database,
            url,
            value="n bigint, price double, note string",
            reducers={"n": Count(), "price": Last("p", by="t"), "note": Last("q", by=("t", "u"))},
        )
        rig.commit(1, {"a": (1, 9.5, "first"), "b": (1, 1.0, "x")})
        rig.commit(2, {"a": (1, 0.5, None)})
        assert read(rig, "ab", before=3) == {"a": (2, 0.5, "first"), "b": (1, 1.0, "x")}
        rig.commit(2, {"a": (1, None, "second")})
        assert read(rig, "ab", before=3) == {"a": (2, 9.5, "second"), "b": (1, 1.0, "x")}

    @pytest.mark.parametrize("semantics", list(Semantics), ids=str)
    @pytest.mark.parametrize("reducer", [Min("x"), Last("x", by="t"), custom(max, None, field="x")], ids=str)
    def test_a_batch_of_nulls_alone_changes_no_value_of_any_type(
        self, database: StateBackend, url: str, reducer: Reducer, semantics: Semantics
    ) -> None:
        """A column that has nothing but nulls has no type in a statement."""
        # MySQL has 30 decimals at most.
        kinds = [*(kind for kind in KINDS if kind.ddl != "decimal(38,38)"), FRACTIONS]
        edges = [self.edges(kind) for kind in kinds]
        columns = [f"v{place}" for place in range(len(kinds))]
        rig = self.rig(
            database,
            url,
            value=", ".join(["n bigint", *(f"v{place} {kind.ddl}" for place, kind in enumerate(kinds))]),
            reducers={"n": Count(), **dict.fromkeys(columns, reducer)},
            semantics=semantics,
        )
        rows = {
            f"{at:03}": (1, *(values[at % len(values)] for values in edges))
            for at in range(max(map(len, edges)))
        }
        rig.commit(1, rows)
        rig.commit(2, {key: (1, *[None] * len(columns)) for key in rows})
        assert read(rig, rows, before=3) == {key: (2, *row[1:]) for key, row in rows.items()}

    def test_put_overwrites_and_is_undone(self, database: StateBackend, url: str) -> None:
        rig = self.rig(database, url, reducers={"n": Put()})
        rig.commit(1, {"a": 5})
        rig.commit(2, {"a": 3, "b": 1})
        assert read(rig, "ab", before=3) == {"a": 3, "b": 1}
        rig.commit(2, {"a": 4})
        assert read(rig, "ab", before=3) == {"a": 4}
        rig.commit(2, None)
        assert read(rig, "ab", before=3) == {"a": 5}
