"""For all Spark types, columnar aggregates and joins have the same results as ``groupBy`` and ``join``."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.sql import functions as F

import pillarbox.functions as PF
from pillarbox import (
    ProgramError,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    approx_count_distinct_,
    avg_,
    count_,
    first_,
    last_,
    max_,
    min_,
    sum_,
)

# Values of each type, as SQL: minimum, maximum and odd values, whose sums are exact in any order. Plus nulls.
NUMBERS = {
    "byte": ["-128Y", "127Y", "0Y"],
    "short": ["-32768S", "32767S"],
    "int": ["-2147483648", "2147483647", "7"],
    "long": ["144115188075855872L", "-72057594037927936L", "1048576L"],
    "float": ["float('NaN')", "float('-0.0')", "float('Infinity')", "float('3.4028235E38')", "float('0.125')"],
    "double": [
        "double('NaN')",
        "-0.0D",
        "double('Infinity') - double('Infinity')",  # a NaN of other bits
        "double('-Infinity')",
        "4.9E-324D",
        "0.125D",
    ],
    "dec5": ["CAST(999.99 AS DECIMAL(5, 2))", "CAST(-999.99 AS DECIMAL(5, 2))", "CAST(0.01 AS DECIMAL(5, 2))"],
    "dec18": ["CAST('999999999999999.999' AS DECIMAL(18, 3))", "CAST('-0.001' AS DECIMAL(18, 3))"],
    "dec38": [
        "CAST('-99999999999999999999999.9999999999' AS DECIMAL(38, 10))",
        "CAST('99999999999999999999999.9999999999' AS DECIMAL(38, 10))",
        "CAST('0.0000000001' AS DECIMAL(38, 10))",
    ],
}
OTHERS = {
    "text": ["''", "'a'", "'Z'", "'ä'", "'日本'", "'😀'", "' '", r"'\0'"],
    "bin": ["X''", "X'00'", "X'FF'", "X'7F80'"],
    "bool": ["true", "false"],
    "date": ["DATE'1969-12-31'", "DATE'9999-12-31'", "DATE'0001-01-01'", "DATE'2024-02-29'"],
    "ts": [
        "TIMESTAMP'1969-12-31 23:59:59.999999Z'",
        "TIMESTAMP'9999-12-31 23:59:59.999999Z'",
        "TIMESTAMP'0001-01-02 00:00:00Z'",
        "TIMESTAMP'2024-03-31 01:30:00Z'",
    ],
    "ntz": [
        "TIMESTAMP_NTZ'1969-12-31 23:59:59.999999'",
        "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'",
        "TIMESTAMP_NTZ'2024-03-31 02:30:00'",
    ],
    "time": ["TIME'00:00:00'", "TIME'23:59:59.999999'", "TIME'12:00:00.000001'"],
}
INTERVALS = {
    "days": [
        "INTERVAL '-1 02:03:04.567' DAY TO SECOND",
        "INTERVAL '5337599 04:00:54.775807' DAY TO SECOND",
        "INTERVAL '0 00:00:00' DAY TO SECOND",
    ],
}
# Equality is by field, and null fields are equal.
STRUCTS = {
    "part": [
        "named_struct('x', float('NaN'), 'in', named_struct('text', 'a', 'x', 0.0D))",
        "named_struct('x', float('NaN'), 'in', named_struct('text', 'a', 'x', -0.0D))",
        "named_struct('x', CAST(null AS FLOAT), 'in', named_struct('text', null, 'x', 1.5D))",
        "named_struct('x', float('0.5'), 'in', null)",
    ],
}
# No keys, and nothing but their number can be had of them.
NESTED = {
    "list": ["array(1, null)", "array()"],
    "dict": ["map('a', TIMESTAMP'2024-03-31 01:30:00Z')"],
    "struct": ["named_struct('a', 1, 'b', array(TIMESTAMP'2024-03-31 01:30:00Z'))"],
    "void": ["null"],
}
MONTHS = "INTERVAL '1-2' YEAR TO MONTH"

ANY = {"count": (count_, F.count)}
ORDERED = {
    **ANY,
    "min": (min_, F.min),
    "max": (max_, F.max),
    "first": (first_, lambda name: F.min_by(name, "at")),
    "last": (last_, lambda name: F.max_by(name, "at")),
    "distinct": (approx_count_distinct_, F.approx_count_distinct),
}
NUMERIC = {**ORDERED, "sum": (sum_, F.sum), "avg": (avg_, F.avg)}
OF_TYPES: list[tuple[dict[str, list[str]], dict[str, tuple[Any, Any]]]] = [
    ({**NUMBERS, **INTERVALS}, NUMERIC),
    (OTHERS, ORDERED),
    ({**STRUCTS, **NESTED}, ANY),
]
KEYS = [*NUMBERS, *OTHERS, *INTERVALS, *STRUCTS]


def one_of(values: list[str], number: str) -> str:
    cases = " ".join(f"WHEN {index} THEN {value}" for index, value in enumerate(values))
    return f"CASE {number} {cases} END"


def shown(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(shown, value))
    return repr(value) if isinstance(value, float) else bytes(value) if isinstance(value, bytearray) else value


def counted(rows: Any) -> Counter[Any]:
    return Counter(tuple(map(shown, row)) for row in rows)


@pytest.fixture(scope="module")
def everything(spark):
    # Not in a new session: Spark's grouping uses the first session's settings.
    settings = {"spark.sql.session.timeZone": "America/New_York", "spark.sql.timeType.enabled": "true"}
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    columns = {name: values for kinds, _ in OF_TYPES for name, values in kinds.items()}
    # The clocks of the zone are set in the middle of the rows, which are in no order of time.
    df = spark.range(0, 360, numPartitions=2).selectExpr(
        "id",
        "timestamp_millis(1710050400000 + (id * 7919 % 3600) * 1000 - 1800000) AS at",
        "CAST(id % 4 AS INT) AS key",
        *(f"{one_of(values, f'(id * 5) % {len(values) + 1}')} AS {name}" for name, values in columns.items()),
    )
    yield df.cache()
    df.unpersist()
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


WINDOW = TumblingEventTimeWindows.of("10 minutes")


def own(df, keys):
    return df.groupBy(*keys, F.window("at", "10 minutes").alias("w"))


def test_values_of_all_types(everything):
    pairs = {
        f"{name}_{column}": (ours(column), sparks(column).alias(f"{name}_{column}"))
        for kinds, aggregates in OF_TYPES
        for column in kinds
        for name, (ours, sparks) in aggregates.items()
    }
    results = PF.window_aggregate(
        everything, keys="key", time="at", window=WINDOW, **{name: ours for name, (ours, _) in pairs.items()}
    )
    of_spark = own(everything, ["key"]).agg(*(sparks for _, sparks in pairs.values()))
    of_spark = of_spark.select(
        "key", F.col("w.start").alias("window_start"), F.col("w.end").alias("window_end"), *pairs
    )
    assert [field.dataType for field in results.schema] == [field.dataType for field in of_spark.schema]
    there = {row[:2]: row for row in results.collect()}
    expected = {row[:2]: row for row in of_spark.collect()}
    assert len(expected) == 24 and there.keys() == expected.keys()
    for name in results.columns:
        assert [shown(there[key][name]) for key in expected] == [shown(row[name]) for row in expected.values()], name


def test_keys_of_all_types(everything):
    for columns in KEYS, []:
        results = PF.window_aggregate(everything, keys=columns, time="at", window=WINDOW, n=count_(), total=sum_("id"))
        by_spark = own(everything, columns).agg(F.count("*").alias("n"), F.sum("id").alias("total"))
        expected = counted(by_spark.select(*columns, "w.start", "w.end", "n", "total").collect())
        assert counted(results.collect()) == expected and len(expected) >= 6


@pytest.mark.long("values of all types are in the test before, and joins by all kinds of keys need no Spark")
def test_joins_of_all_types(everything):
    minutes = F.expr("INTERVAL '10' MINUTE")
    # (Rows without a null in any column that is a key.)
    whole = everything.dropna(subset=KEYS)
    cases: list[tuple[Any, list[str], Any]] = [(whole, KEYS, "inner"), (everything, ["double"], "left")]
    for rows, keys, how in cases:
        left, right = rows.alias("a"), rows.where("id % 3 != 1").alias("b")
        results = PF.interval_join(
            left, right, on=keys, time="at", lower="-10 minutes", upper="10 minutes", how=how, suffixes=("", "_right")
        )
        near = F.col("b.at").between(F.col("a.at") - minutes, F.col("a.at") + minutes)
        for key in keys:
            near = near & (F.col(f"a.{key}") == F.col(f"b.{key}"))
        theirs = [F.col(f"b.{name}").alias(f"{name}_right") for name in rows.columns if name not in keys]
        of_spark = left.join(right, near, how).select("a.*", *theirs)
        assert [field.dataType for field in results.schema] == [field.dataType for field in of_spark.schema]
        expected = Counter(map(repr, of_spark.collect()))
        assert Counter(map(repr, results.collect())) == expected and sum(expected.values()) > 60


def test_unsupported_types_are_refused_at_once(everything):
    df = everything.selectExpr(
        "at", *NESTED, "text COLLATE UTF8_LCASE AS collated", "parse_json('1') AS variant", "bool", "time"
    )

    def build(keys: str, **aggregates: Any) -> Any:
        return PF.window_aggregate(df, keys=keys, time="at", window=WINDOW, **aggregates)

    for name in (*NESTED, "collated", "variant"):
        kind = df.schema[name].dataType.simpleString()
        with pytest.raises(ProgramError) as refused:
            build(name, n=count_())
        assert name in str(refused.value) and kind in str(refused.value)
        for aggregate in (min_, first_, approx_count_distinct_):
            with pytest.raises(ProgramError) as refused:
                build("bool", x=aggregate(name))
            assert f"x={aggregate.__name__}({name!r})" in str(refused.value) and kind in str(refused.value)
    for name in (*NESTED, "collated", "variant", "bool", "time"):
        with pytest.raises(ProgramError, match=rf"x=sum_\('{name}'\).*takes a column of numbers or .*: cast it"):
            build("bool", x=sum_(name))
    with pytest.raises(ProgramError, match=r"x=count_\('variant'\)\): variant columns cannot be read: cast the column"):
        build("bool", x=count_("variant"))
    with pytest.raises(ProgramError, match=r"column 'variant' of the right side: variant columns cannot be read: cast"):
        PF.interval_join(
            df.select("at", "bool"),
            df.select("at", "bool", "variant"),
            on="bool",
            time="at",
            lower=0,
            upper=0,
            suffixes=("", "_right"),
        )
    with pytest.raises(ProgramError, match=r"the column 'm' is struct<a:interval year to month>, .* drop it, or"):
        months = everything.selectExpr("at", "key", f"named_struct('a', {MONTHS}) AS m")
        PF.window_aggregate(months, keys="key", time="at", window=WINDOW, n=count_())


def test_maps_whose_keys_python_cannot_hash_are_refused(spark) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    for keys in ("array(1)", "named_struct('a', array(1))"):
        rows = spark.range(1).selectExpr("id", f"array(map({keys}, 2)) AS m")
        with pytest.raises(ProgramError, match=r"the column 'm' is array<map<.*but Python cannot hash its maps' keys"):
            env.from_dataframe(rows)
    rows = spark.range(1).selectExpr("id", "map(named_struct('a', 1), 2) AS m")
    assert env.from_dataframe(rows).map(lambda row: row.m).execute_and_collect() == [{(1,): 2}]
