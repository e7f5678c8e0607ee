"""Every type that a column may have, as key and as value, in any store of states: what is written is what is
read, and what cannot be kept is refused with nothing written.

Subclasses have a fixture `url`, of any scope: each test has a table and a topology of its own. A store is
reached through `open_database` and the methods of `StateBackend` alone.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from support.states import Rig, word_table
from txstream.api.errors import StateTableError, StateValueError
from txstream.api.reducers import Count, Last, Max, Min, Put, Reducer, Sum
from txstream.api.schema import parse_schema
from txstream.semantics import Semantics
from txstream.state import StateBackend, open_database
from txstream.transaction import Txid

INFINITY, LONG_KEYS = "infinity", "long keys"
"""What a backend may name in `cannot_keep`: it must refuse such values with StateValueError instead. It may
name types of `KINDS` too: it must refuse tables with such columns."""

NAN = float("nan")

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Kind:
    """A type, the values that are likely to go wrong, and a way to draw any."""

    ddl: str
    edges: Sequence[Any]
    any: st.SearchStrategy[Any]

    @property
    def arrow(self) -> pa.DataType:
        return parse_schema(f"x {self.ddl}").field(0).type

    def __str__(self) -> str:
        return self.ddl


def _decimal(precision: int, scale: int) -> Kind:
    largest = 10**precision - 1
    numbers = st.integers(-largest, largest).map(lambda n: _scaled(n, scale))
    likely = {-largest, largest, -1, 0, 1, -9, 9, -10, 10, 99, largest // 7}
    edges = [_scaled(n, scale) for n in likely if abs(n) <= largest]
    return Kind(f"decimal({precision},{scale})", edges, numbers)


def _scaled(number: int, scale: int) -> Decimal:
    # As digits: arithmetic would round to 28 of them.
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def _integer(ddl: str, bits: int) -> Kind:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return Kind(ddl, [low, low + 1, -1, 0, 1, high - 1, high], st.integers(low, high))


_TEXTS = st.text(
    st.one_of(
        st.sampled_from("\"\\{},' NULLnull%:?\t\r\n\x01\x7f\u2028\ufeff\U0010ffff"),
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
    ),
    max_size=12,
)

# Pairs that some collation takes for equal, and ones whose order in UTF-16 is not that of their characters.
_EDGE_TEXTS = [
    *("", " ", "  ", "a", "A", "a ", "a  ", " a", "á", "a\u0301", "ß", "ss", "i", "I", "\u0131", "\u0130"),
    *("NULL", "null", "\\", "\\\\", '"', "'", "''", "{", "}", "{}", ",", "%s", ":x", "?", "\n", "\r\n", "\t"),
    *("\x01", "\u2028", "\ufeff", "\uffff", "\U0001f980", "\U0010ffff", "日本", "0", "00", "1e0", "x" * 300),
]  # fmt: skip

_INFINITE = (-math.inf, math.inf)

KINDS = (
    Kind("string", _EDGE_TEXTS, _TEXTS),
    Kind(
        "binary",
        [b"", b"\0", b"\0\0", b" ", b"a", b"A", b"a\0", b"\\x00", b"\\", b'"', b"\xff", bytes(range(256))],
        st.binary(max_size=12),
    ),
    Kind("boolean", [False, True], st.booleans()),
    _integer("tinyint", 8),
    _integer("smallint", 16),
    _integer("int", 32),
    _integer("bigint", 64),
    Kind(
        "float",
        [0.0, -1.5, 0.10000000149011612, 1.401298464324817e-45, 3.4028234663852886e38, *_INFINITE],
        st.floats(width=32, allow_nan=False),
    ),
    Kind(
        "double",
        [0.0, -1.5, 0.1, 0.30000000000000004, 5e-324, 1.7976931348623157e308, 2.0**53, *_INFINITE],
        st.floats(allow_nan=False),
    ),
    _decimal(1, 0),
    _decimal(10, 2),
    _decimal(38, 0),
    _decimal(38, 10),
    _decimal(38, 38),
    Kind("date", [date(1, 1, 1), date(999, 2, 3), date(1970, 1, 1), date(9999, 12, 31)], st.dates()),
    Kind(
        "timestamp",
        [
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
            datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
            datetime(2026, 3, 29, 1, 30, 0, 1, UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
        ],
        st.datetimes(timezones=st.just(UTC)),
    ),
    Kind(
        "timestamp_ntz",
        [
            datetime(1, 1, 1),
            datetime(1969, 12, 31, 23, 59, 59, 999999),
            datetime(2026, 3, 29, 2, 30),
            datetime(2026, 3, 29, 2, 30, 0, 45),
            datetime(9999, 12, 31, 23, 59, 59, 999999),
        ],
        st.datetimes(),
    ),
)
FLOATING = tuple(kind for kind in KINDS if kind.ddl in ("float", "double"))
NUMERIC = tuple(kind for kind in KINDS if pa.types.is_integer(kind.arrow) or pa.types.is_decimal(kind.arrow))
OVERFLOWS = (
    ("tinyint", 127, 1),
    ("smallint", -(2**15), -1),
    ("int", 2**31 - 1, 1),
    ("bigint", 2**63 - 1, 1),
    ("decimal(10,2)", Decimal("99999999.99"), Decimal("0.01")),
    ("decimal(38,38)", Decimal("-0." + "9" * 38), Decimal("-1E-38")),
    ("decimal(38,0)", Decimal("9" * 38), Decimal(1)),
    ("double", 1.7e308, 1.7e308),
    ("float", -(1.5 * 2.0**127), -(2.0**127)),
)


class TypeFixtures:
    cannot_keep: ClassVar[frozenset[str]] = frozenset()

    @pytest.fixture
    def database(self, url: str) -> Iterator[StateBackend]:
        database = open_database(url, connect_timeout_seconds=5.0, message_timeout_seconds=20.0)
        yield database
        database.close()

    @pytest.fixture(autouse=True)
    def _refused_type(self, request: pytest.FixtureRequest, database: StateBackend, url: str) -> None:
        """Of a type that it cannot keep nothing but this is expected."""
        parameters = getattr(request.node, "callspec", None)
        named = {} if parameters is None else parameters.params
        ddl = str(named.get("kind", named.get("ddl")))
        if ddl not in self.cannot_keep:
            return
        for columns in ({"key": f"k {ddl}"}, {"value": f"v {ddl}", "reducers": {"v": Put()}}):
            with pytest.raises(StateTableError, match=re.escape(f"of type {ddl} exactly; use another type")):
                self.rig(database, url, **columns)
        pytest.xfail(f"{ddl} is refused")

    def rig(
        self,
        database: StateBackend,
        url: str,
        *,
        key: str = "word string",
        value: str = "n bigint",
        reducers: Mapping[str, Reducer] | None = None,
        semantics: Semantics = Semantics.OPAQUE,
    ) -> Rig:
        name = f"types_{next(_numbers)}"
        spec = word_table(name, semantics, key=key, value=value, reducers=reducers)
        return Rig(database, url, spec, topology=name).join()

    def keeps(self, value: Any) -> bool:
        """Can this backend keep the value?"""
        if isinstance(value, float) and math.isinf(value):
            return INFINITY not in self.cannot_keep
        return True

    def edges(self, kind: Kind) -> list[Any]:
        """In ascending order."""
        found = [value for value in kind.edges if self.keeps(value)]
        if LONG_KEYS in self.cannot_keep:
            found = [value for value in found if not isinstance(value, (str, bytes)) or len(value) < 200]
        return sorted(found)


def read(rig: Rig, keys: Mapping[Any, Any] | Sequence[Any], *, before: int) -> dict[Any, Any]:
    """key -> value as they were before batch `before`; tuples for several columns."""
    state = rig.spec.state
    rows = [key if isinstance(key, tuple) else (key,) for key in keys]
    wanted = pa.table(
        {f.name: pa.array([row[place] for row in rows], f.type) for place, f in enumerate(state.key_schema)}
    )
    found = rig.database.read(rig.spec, wanted, before=Txid(before))
    assert found.schema.remove_metadata().equals(pa.schema([*state.key_schema, *state.value_schema]))
    answer: dict[Any, Any] = {}
    for row in found.to_pylist():
        key = tuple(row[name] for name in state.key_names)
        value = tuple(row[name] for name in state.value_names)
        assert key not in answer, f"key {key!r} came twice"
        answer[key if len(key) > 1 else key[0]] = value if len(value) > 1 else value[0]
    return answer


class TypeContract(TypeFixtures):
    """What is written is what is read."""

    @pytest.mark.parametrize("kind", KINDS, ids=str)
    def test_keys_of_every_type(self, database: StateBackend, url: str, kind: Kind) -> None:
        """None is taken for another: neither by case, blanks, accents, nor by what a driver makes of it."""
        rig = self.rig(database, url, key=f"k {kind.ddl}")
        rows = {key: number for number, key in enumerate(self.edges(kind))}
        absent = max(rows)
        first = {key: number for key, number in rows.items() if key != absent}
        rig.commit(1, first)
        assert read(rig, rows, before=2) == first
        rig.commit(2, rows)
        assert read(rig, rows, before=3) == {key: 2 * n if key in first else n for key, n in rows.items()}
        assert read(rig, rows, before=2) == first

    @pytest.mark.parametrize("kind", KINDS, ids=str)
    def test_values_of_every_type(self, database: StateBackend, url: str, kind: Kind) -> None:
        rig = self.rig(database, url, value=f"v {kind.ddl}", reducers={"v": Put()})
        rows = {f"{number:03}": value for number, value in enumerate(self.edges(kind))}
        if kind.ddl in ("string", "binary"):
            rows["long"] = "ä🦀" * 50_000 if kind.ddl == "string" else bytes(range(256)) * 400
        rig.commit(1, rows)
        assert read(rig, rows, before=2) == rows
        rig.commit(2, dict(zip(rows, reversed(rows.values()), strict=True)))
        assert read(rig, rows, before=2) == rows  # they are in prev by now
        assert list(read(rig, sorted(rows), before=3).values()) == [
            value for _, value in sorted(zip(rows, reversed(rows.values()), strict=True))
        ]
        rig.commit(2, None)
        assert read(rig, rows, before=3) == rows

    @pytest.mark.parametrize("kind", KINDS, ids=str)
    def test_order_of_every_type(self, database: StateBackend, url: str, kind: Kind) -> None:
        """Any two values, in two batches: the database's order is that of Python, and of the folds."""
        rig = self.rig(
            database,
            url,
            key="i int, j int",
            value=f"least {kind.ddl}, most {kind.ddl}, newest {kind.ddl}",
            reducers={"least": Min("x"), "most": Max("x"), "newest": Last("x", by="t")},
        )
        values = self.edges(kind)
        pairs = list(itertools.product(range(len(values)), repeat=2))
        rig.commit(1, {pair: (values[pair[0]],) * 3 for pair in pairs})
        rig.commit(2, {pair: (values[pair[1]],) * 3 for pair in pairs})
        assert read(rig, pairs, before=3) == {
            (i, j): (values[min(i, j)], values[max(i, j)], values[j]) for i, j in pairs
        }

    @pytest.mark.parametrize("kind", KINDS, ids=str)
    def test_anything_is_read_back(self, database: StateBackend, url: str, kind: Kind) -> None:
        rig = self.rig(database, url, key=f"k {kind.ddl}", value=f"v {kind.ddl}", reducers={"v": Put()})
        values = kind.any.filter(self.keeps)
        known: dict[Any, Any] = {}
        txids = itertools.count(1)

        @given(st.dictionaries(values, values, max_size=20))
        @settings(max_examples=8, deadline=None)
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
        rig = self.rig(database, url, value=f"n {kind.ddl}")
        examples = itertools.count(1)

        @given(st.lists(st.tuples(kind.any, kind.any), min_size=1, max_size=3))
        @settings(max_examples=8, deadline=None)
        def check(pairs: list[tuple[Any, Any]]) -> None:
            example = next(examples)
            firsts = {f"{example}-{place}": first for place, (first, _) in enumerate(pairs)}
            seconds = {f"{example}-{place}": second for place, (_, second) in enumerate(pairs)}
            rig.commit(2 * example, firsts)
            sums = {key: _total(first, seconds[key]) for key, first in firsts.items()}
            if all(_fits(total, kind.arrow) for total in sums.values()):
                rig.commit(2 * example + 1, seconds)
                assert read(rig, sums, before=2 * example + 2) == sums
            else:
                with pytest.raises(StateValueError, match="cannot hold"):
                    rig.commit(2 * example + 1, seconds)
                assert read(rig, sums, before=2 * example + 2) == firsts

        check()

    @pytest.mark.parametrize("semantics", list(Semantics), ids=str)
    def test_a_key_of_mixed_types(self, database: StateBackend, url: str, semantics: Semantics) -> None:
        rig = self.rig(
            database,
            url,
            key="s string, b binary, t boolean, i int, f double, d decimal(10,2), a date, z timestamp",
            semantics=semantics,
        )
        base = (
            "a",
            b"\0",
            True,
            -1,
            0.5,
            Decimal("-0.05"),
            date(2026, 1, 1),
            datetime(2026, 1, 1, tzinfo=UTC),
        )
        other = (
            "A",
            b"",
            False,
            1,
            -0.5,
            Decimal("0.05"),
            date(2026, 1, 2),
            datetime(2026, 1, 1, 0, 0, 0, 1, UTC),
        )
        rows: dict[tuple[Any, ...], int] = {base: 1, other: 2}
        for place, value in enumerate(other):
            rows[(*base[:place], value, *base[place + 1 :])] = 3 + place
        rig.commit(1, rows)
        rig.commit(2, rows)
        assert read(rig, rows, before=3) == {key: 2 * value for key, value in rows.items()}

    def test_values_of_every_type_in_one_row(self, database: StateBackend, url: str) -> None:
        kept = [kind for kind in KINDS if kind.ddl not in self.cannot_keep]
        columns = [(f"v{place}", kind) for place, kind in enumerate(kept)]
        rig = self.rig(
            database,
            url,
            value=", ".join(f"{name} {kind.ddl}" for name, kind in columns),
            reducers={name: Put() for name, _ in columns},
        )
        first = tuple(self.edges(kind)[0] for _, kind in columns)
        last = tuple(self.edges(kind)[-1] for _, kind in columns)
        rig.commit(1, {"a": first, "b": last})
        rig.commit(2, {"a": last})
        assert read(rig, ["a", "b", "c"], before=3) == {"a": last, "b": last}
        assert read(rig, ["a", "b", "c"], before=2) == {"a": first, "b": last}

    @pytest.mark.parametrize("kind", FLOATING, ids=str)
    def test_both_zeros_are_one_key(self, database: StateBackend, url: str, kind: Kind) -> None:
        rig = self.rig(database, url, key=f"k {kind.ddl}")
        rig.commit(1, {-0.0: 1})
        rig.commit(2, {0.0: 1})
        rig.commit(3, {-0.0: 1})
        assert read(rig, [0.0], before=4) == {0.0: 3}
        assert read(rig, [-0.0], before=3) == {0.0: 2}


class RefusedContract(TypeFixtures):
    """What cannot be kept is told, by every store alike, and nothing of its batch is written."""

    def refused(self, rig: Rig, good: Any, bad: Any, expected: str) -> None:
        rig.commit(1, good)
        with pytest.raises(StateValueError, match=expected):
            rig.commit(2, {**good, **bad})
        assert read(rig, good, before=3) == good
        assert rig.last().txid == 1

    @pytest.mark.parametrize("kind", KINDS, ids=str)
    def test_null_in_a_key(self, database: StateBackend, url: str, kind: Kind) -> None:
        rig = self.rig(database, url, key=f"j int, k {kind.ddl}")
        table = rig.spec.state.table
        self.refused(rig, {(1, self.edges(kind)[0]): 1}, {(2, None): 1}, f"'k' of table '{table}' got a null")

    @pytest.mark.parametrize("reducer", [Sum("n"), Min("n"), Max("n"), Last("n", by="t"), Put()], ids=str)
    @pytest.mark.parametrize("kind", FLOATING, ids=str)
    def test_not_a_number(self, database: StateBackend, url: str, kind: Kind, reducer: Reducer) -> None:
        rig = self.rig(database, url, value=f"n {kind.ddl}", reducers={"n": reducer})
        self.refused(rig, {"a": 1.0}, {"b": NAN}, f"'n' of table '{rig.spec.state.table}' got nan")

    @pytest.mark.parametrize("semantics", list(Semantics), ids=str)
    @pytest.mark.parametrize("value", [math.inf, -math.inf])
    def test_an_infinite_sum(
        self, database: StateBackend, url: str, value: float, semantics: Semantics
    ) -> None:
        rig = self.rig(database, url, value="n double", semantics=semantics)
        self.refused(rig, {"a": 1.0}, {"b": value}, f"'n' of table '{rig.spec.state.table}' got -?inf")

    @pytest.mark.parametrize("kind", FLOATING, ids=str)
    def test_infinities(self, database: StateBackend, url: str, kind: Kind) -> None:
        """Kept, which the tests above show, or refused."""
        if INFINITY not in self.cannot_keep:
            assert {math.inf, -math.inf} <= set(self.edges(kind))
            return
        keyed = self.rig(database, url, key=f"k {kind.ddl}")
        self.refused(keyed, {1.0: 1}, {math.inf: 1}, "'k' of table .* got inf")
        valued = self.rig(database, url, value=f"n {kind.ddl}", reducers={"n": Max("n")})
        self.refused(valued, {"a": 1.0}, {"b": -math.inf}, "'n' of table .* got -inf")

    def test_a_key_that_cannot_be_is_not_looked_up(self, database: StateBackend, url: str) -> None:
        """It is refused as when it is written, whatever the driver would make of it."""
        keys: list[tuple[str, Any, str]] = [
            ("string", "a\0b", "has the character NUL"),
            ("double", NAN, "got nan"),
        ]
        if INFINITY in self.cannot_keep:
            keys.append(("float", math.inf, "got inf"))
        for ddl, key, expected in keys:
            rig = self.rig(database, url, key=f"k {ddl}")
            with pytest.raises(StateValueError, match=f"'k' of table .*{expected}"):
                read(rig, [key], before=1)

    @pytest.mark.parametrize("kind", FLOATING, ids=str)
    def test_a_key_that_is_not_a_number(self, database: StateBackend, url: str, kind: Kind) -> None:
        rig = self.rig(database, url, key=f"k {kind.ddl}")
        self.refused(rig, {1.0: 1}, {NAN: 1}, f"'k' of table '{rig.spec.state.table}' got nan")

    def test_both_zeros_in_one_batch(self, database: StateBackend, url: str) -> None:
        rig = self.rig(database, url, key="k double, j int")
        table = pa.table({"k": [0.0, -0.0], "j": pa.array([1, 1], pa.int32()), "n": [1, 2]})
        with pytest.raises(StateValueError, match=r"key k=0\.0, j=1 has two deltas"):
            rig.commit(1, table)

    @pytest.mark.parametrize("semantics", list(Semantics), ids=str)
    @pytest.mark.parametrize(("ddl", "stored", "delta"), OVERFLOWS, ids=lambda value: str(value)[:14])
    def test_a_sum_that_does_not_fit(
        self, database: StateBackend, url: str, semantics: Semantics, ddl: str, stored: Any, delta: Any
    ) -> None:
        rig = self.rig(database, url, value=f"n {ddl}", semantics=semantics)
        good = {"a": stored, "b": stored - stored, "c": delta}
        rig.commit(1, good)
        with pytest.raises(StateValueError, match=r"key word='a': column 'n' \(.*\) cannot hold"):
            rig.commit(2, {"a": delta, "b": delta, "c": stored - stored})
        assert read(rig, good, before=3) == good

    @pytest.mark.parametrize("column", ["key", "value"])
    @pytest.mark.parametrize("ddl", ["date", "timestamp", "timestamp_ntz"])
    def test_years_that_stores_disagree_about(
        self, database: StateBackend, url: str, ddl: str, column: str
    ) -> None:
        arrow = parse_schema(f"x {ddl}").field(0).type
        day = pa.scalar(10_000_000 if ddl == "date" else 10**18, pa.int32() if ddl == "date" else pa.int64())
        late = pa.array([day.as_py()], day.type).cast(arrow)
        if column == "key":
            rig = self.rig(database, url, key=f"k {ddl}")
            table = pa.table({"k": late, "n": [1]})
        else:
            rig = self.rig(database, url, value=f"n {ddl}", reducers={"n": Max("n")})
            table = pa.table({"word": ["a"], "n": late})
        with pytest.raises(
            StateValueError, match=f"'{table.column_names[column == 'value']}' of table .*year"
        ):
            rig.commit(1, table)

    @pytest.mark.parametrize("column", ["key", "value"])
    def test_nul_in_text(self, database: StateBackend, url: str, column: str) -> None:
        rig = self.rig(database, url, value="n string", reducers={"n": Max("n")})
        bad = {"a\0b": "x"} if column == "key" else {"b": "a\0b"}
        self.refused(rig, {"a": "x"}, bad, r"of table .*'a\\x00b' has the character NUL")

    @pytest.mark.parametrize(
        ("arrow", "shown"),
        [
            (pa.list_(pa.int64()), "array<bigint>"),
            (pa.struct([("a", pa.int64())]), "struct<a:bigint>"),
            (pa.map_(pa.string(), pa.int64()), "map<string,bigint>"),
            (pa.uint64(), "uint64"),
            (pa.duration("us"), "duration"),
            (pa.time64("us"), "time64"),
            (pa.timestamp("ns"), "timestamp.ns"),
            (pa.timestamp("ms"), "timestamp.ms"),
            (pa.timestamp("us", "Europe/Berlin"), "timestamp.us, tz=Europe/Berlin"),
            (pa.large_string(), "large_string"),
            (pa.large_binary(), "large_binary"),
            (pa.decimal128(10, -2), r"decimal.10,-2"),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("column", ["key", "value"])
    def test_types_that_no_column_has(
        self, database: StateBackend, url: str, column: str, arrow: pa.DataType, shown: str
    ) -> None:
        schema = pa.schema([("x", arrow)])
        key, value = (schema, "n bigint") if column == "key" else ("word string", schema)
        name = f"types_{next(_numbers)}"
        spec = word_table(name, key=key, value=value, reducers={spec_name(value): Count()})
        with pytest.raises(StateTableError, match=f"column 'x' of type {shown}"):
            Rig(database, url, spec, topology=name).join()


def spec_name(value: str | pa.Schema) -> str:
    return str(parse_schema(value).names[0])


def _total(first: Any, second: Any) -> Any:
    if not isinstance(first, Decimal):
        return first + second
    scale = -int(first.as_tuple().exponent)
    return _scaled(_unscaled(first) + _unscaled(second), scale)


def _unscaled(value: Decimal) -> int:
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    return -number if sign else number


def _fits(total: Any, data_type: pa.DataType) -> bool:
    if pa.types.is_decimal(data_type):
        return bool(abs(_unscaled(total)) < 10**data_type.precision)
    bits = data_type.bit_width
    return bool(-(1 << (bits - 1)) <= total < 1 << (bits - 1))


class AllTypesContract(TypeContract, RefusedContract):
    """All of it."""
