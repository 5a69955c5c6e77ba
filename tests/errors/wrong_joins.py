# mypy: ignore-errors
# As in wrong_uses.py, which has the form of the table.
"""Wrong uses of columnar joins, and the expected words of their errors."""

from __future__ import annotations

from typing import Any

from pillarbox import StreamExecutionEnvironment, Types, WatermarkStrategy
from pillarbox.functions import interval_join
from tests.errors.wrong_uses import Build, rows

BY_AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
TYPES = {
    "card": Types.STRING(),
    "shop": Types.INT(),
    "long": Types.LONG(),
    "list": Types.LIST(Types.LONG()),
    "at": Types.LONG(),
}


def stream(env: StreamExecutionEnvironment, *names: str) -> Any:
    info = Types.ROW_NAMED([*names, "at"], [TYPES[name] for name in (*names, "at")])
    return env.from_collection([], info).assign_timestamps_and_watermarks(BY_AT)


def near(env: StreamExecutionEnvironment, left: Any = "card", right: Any = "card") -> Any:
    names = ("card", "shop", "long", "list")
    return stream(env, *names).key_by(left).interval_join(stream(env, *names).key_by(right)).between(0, 5)


def unknown(env: StreamExecutionEnvironment) -> Any:
    mapped = rows(env).map(lambda record: record)
    return stream(env, "card").key_by("card").interval_join(mapped.key_by("card")).between(0, 5)


# fmt: off
JOIN_BUILDS = [
    Build("columns without bounds", lambda env: rows(env).key_by("key").interval_join(rows(env).key_by("key")).columns(), ("interval_join() has no bounds: call interval_join(other).between(lower, upper).columns(...)",)),
    *(Build(f"columns how {value!r}", lambda env, value=value: near(env).columns(value), ('interval_join(): how= must be "inner" or "left", not', repr(value))) for value in ("outer", None, 5)),
    Build("columns between nothing", lambda env: near(env).between(0, 0).lower_bound_exclusive().upper_bound_exclusive().columns(), ("between(0, 0) with exclusive bounds excludes all pairs: widen the interval",)),
    Build("columns of the same name", lambda env: near(env).columns(), ("interval_join(): both sides have a column 'shop': rename one", 'suffixes=("", "_right")')),
    *(Build(f"suffixes {value!r}", lambda env, value=value: near(env).columns(suffixes=value), ('suffixes= must be two strings, such as ("", "_right"), not', repr(value))) for value in ("_r", ("",), ("", None), 5)),
    Build("suffixes that are the same", lambda env: near(env).columns(suffixes=("", "")), ("interval_join(): results: 2 columns have the name 'shop'",)),
    Build("columns that are not known", lambda env: unknown(env).columns(), ("columns() needs declared columns, but 'map', on the right side, declares none", "use process() with a ProcessJoinFunction")),
    Build("columns by a function", lambda env: near(env, lambda record: record.card).columns(), ("columns() needs columns as keys, without key_type=: key the left side", "use process() with a ProcessJoinFunction")),
    Build("columns by a missing one", lambda env: near(env, "card", "cart").columns(), ("there is no column 'cart'",)),
    Build("columns by a list", lambda env: near(env, "list", "list").columns(), ("key_by() of the left side: columns() cannot join by 'list', which is array<bigint>",)),
    Build("columns by text and number", lambda env: near(env, "card", "shop").columns(), ("the first keys are STRING, the second keys INT, so they are never equal",)),
    Build("columns by more on one side", lambda env: near(env, ["card", "shop"], "card").columns(), ("the first keys are STRING, INT, the second keys STRING, so they are never equal",)),
    Build("a join of a list", lambda env: interval_join([], [], on="card", time="at", lower=0, upper=5), ("interval_join() takes Spark DataFrames, but left is []",)),
]
# fmt: on
