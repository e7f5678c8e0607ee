"""DataFrame bolts that tests run on Spark, and rows of every type that a stream can have."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from txstream.api.bolts import DataFrameBolt, OutputFieldsDeclarer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class WordsOfLines(DataFrameBolt):
    """The words of lines, as Spark splits them."""

    output = "word string"

    def transform(self, df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as fn

        return df.select(fn.explode(fn.split("value", " ")).alias("word"))


class CountRows(DataFrameBolt):
    """Rows by word."""

    output = "word string, n bigint"

    def transform(self, df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as fn

        return df.groupBy("word").agg(fn.count("*").alias("n"))


class Lengths(DataFrameBolt):
    """Words with their lengths; a map needs no shuffle."""

    output = "word string, n bigint"

    def transform(self, df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as fn

        return df.select("word", fn.length("word").cast("bigint").alias("n"))


class JoinAndSplit(DataFrameBolt):
    """Two inputs and two outputs: the words that both inputs hold, and those that only `left` holds."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("word string, n bigint")
        declarer.declare("word string", stream="alone")

    def transform_streams(self, inputs: Mapping[str, DataFrame]) -> Mapping[str, DataFrame]:
        from pyspark.sql import functions as fn

        assert set(inputs) == {"left", "split.seldom"}
        left = inputs["left"].groupBy("word").agg(fn.count("*").alias("n"))
        seldom = inputs["split.seldom"].select("word").distinct()
        return {
            "default": left.join(seldom, "word", "left_semi"),
            "alone": left.join(seldom, "word", "left_anti").select("word"),
        }


class LinesWithWord(DataFrameBolt):
    """Words, and in how many lines each occurs: one input from the spout, one from a bolt far below it."""

    output = "word string, n bigint"

    def transform_streams(self, inputs: Mapping[str, DataFrame]) -> Mapping[str, DataFrame]:
        from pyspark.sql import functions as fn

        lines, words = inputs["lines"], inputs["count"]
        joined = words.join(lines, fn.array_contains(fn.split(lines.value, " "), words.word))
        return {"default": joined.groupBy(words.word).agg(fn.count("*").alias("n"))}


class Unchanged(DataFrameBolt):
    """Sends every row through a shuffle of Spark's and back."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(declarer.inputs[0])

    def transform(self, df: DataFrame) -> DataFrame:
        return df.repartition(2)


class Answers(DataFrameBolt):
    """Answers with what a function of the test returns."""

    output = "word string, n bigint"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def transform(self, df: DataFrame) -> Any:
        return self.answer(df)


def wrong_type(df: DataFrame) -> Any:
    return df.selectExpr("word", "1 as n")


def wrong_order(df: DataFrame) -> Any:
    return df.selectExpr("1L as n", "word")


def wrong_name(df: DataFrame) -> Any:
    return df.selectExpr("word", "1L as m")


def no_dataframe(df: DataFrame) -> Any:
    return df.collect


def raises(df: DataFrame) -> Any:
    raise LookupError("no such column in my notes")


def unknown_column(df: DataFrame) -> Any:
    return df.select("wrod", "n")


def calls_a_function_that_raises(df: DataFrame) -> Any:
    from pyspark.sql import functions as fn

    @fn.udf("bigint")
    def measure(word: str) -> int:
        if word == "w3":
            raise ValueError("w3 cannot be measured")
        return len(word)

    return df.select("word", measure("word").alias("n"))


def asks_for_a_replay(df: DataFrame) -> Any:
    from pyspark.sql import functions as fn

    from txstream.core.errors import BatchFailedError

    @fn.udf("bigint")
    def refuse(word: str) -> int:
        raise BatchFailedError("not now")

    return df.select("word", refuse("word").alias("n"))


def divides_by_zero(df: DataFrame) -> Any:
    return df.selectExpr("word", "cast(length(word) div (length(word) - length(word)) as bigint) as n")


def nothing(df: DataFrame) -> Any:
    return df.where("false").selectExpr("word", "1L as n")


def one_row(df: DataFrame) -> Any:
    return (
        df.selectExpr("'rows' as word", "1L as n")
        .groupBy()
        .agg({"n": "count"})
        .selectExpr("'rows' as word", "`count(n)` as n")
    )


# --- every type ----------------------------------------------------------------------------------------

TYPES = (
    "id int, s string, b binary, t boolean, i8 tinyint, i16 smallint, i32 int, i64 bigint, "
    "f float, d double, dec decimal(38,10), small decimal(5,2), "
    "day date, at timestamp, wall timestamp_ntz, "
    "a array<string>, aa array<array<int>>, st struct<x:int,y:string,z:array<timestamp>>, "
    "m map<string,bigint>, `odd.name` string, Mixed int, mixed int"
)

UTC = datetime.UTC
WINTER = datetime.timezone(datetime.timedelta(hours=1))


def typed(partition: str, number: int) -> tuple[Any, ...]:
    """Return row i: ordinary values, the extremes, nulls, nulls inside a value, and a mixture of these."""
    return (number, *_TYPED[number])


_TYPED: list[tuple[Any, ...]] = [
    (
        *("plain", b"bytes", True, 1, 2, 3, 4, 1.5, 2.5, Decimal("1.5000000000"), Decimal("1.25")),
        *(datetime.date(2026, 11, 21), datetime.datetime(2026, 11, 21, 12, 30, 15, 123456, UTC)),
        *(datetime.datetime(2026, 11, 21, 12, 30, 15, 123456), ["a", "b"], [[1], [2, 3]]),
        *({"x": 1, "y": "y", "z": [datetime.datetime(2026, 1, 1, tzinfo=UTC)]}, {"k": 1, "l": 2}),
        *("dotted", 1, 2),
    ),
    (
        *("", b"", False, -128, -(2**15), -(2**31), -(2**63), float("-inf"), float("-inf")),
        *(Decimal("-9999999999999999999999999999.9999999999"), Decimal("-999.99"), datetime.date(1, 1, 1)),
        *(datetime.datetime(1, 1, 2, tzinfo=UTC), datetime.datetime(1, 1, 1), [], [[]]),
        *({"x": None, "y": None, "z": []}, {}, "", -1, -2),
    ),
    (
        *(
            "\U0001f642 astral \U00010348\u0000 nul",
            b"\x00\xff\x80",
            True,
            127,
            2**15 - 1,
            2**31 - 1,
            2**63 - 1,
        ),
        *(float("nan"), 1e308, Decimal("9999999999999999999999999999.9999999999"), Decimal("999.99")),
        *(datetime.date(9999, 12, 31), datetime.datetime(9999, 12, 30, 23, 59, 59, 999999, UTC)),
        *(datetime.datetime(9999, 12, 31, 23, 59, 59, 999999), ["\U0001f642", None], [None, [None]]),
        *({"x": 1, "y": "\U0001f642", "z": [None]}, {"\U0001f642": None}, "\U0001f642", 0, 0),
    ),
    (None,) * 21,
    (
        *("daylight", b"", None, 0, None, 0, None, -0.0, 0.1, Decimal(0), None, datetime.date(1969, 12, 31)),
        # An hour that the clocks of Berlin showed twice, and an instant before 1970.
        *(
            datetime.datetime(2025, 10, 26, 2, 30, tzinfo=WINTER),
            datetime.datetime(1969, 12, 31, 23, 59, 59, 1),
        ),
        *(None, None, None, None, None, None, 7),
    ),
]
TYPED_ROWS = len(_TYPED)
