from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType, VariantType

from pillarbox import (
    KeyedProcessFunction,
    ListStateDescriptor,
    ProgramError,
    Types,
    ValueStateDescriptor,
    write_state,
)
from pillarbox._runtime.spark.savepoint import savepoint
from pillarbox._runtime.spark.savepoint.savepoint import OpenSavepoint
from pillarbox._state.savepoint.files import LocalSavepoint
from pillarbox.testing import ProgramTestHarness, row

SEEN = ValueStateDescriptor("seen", Types.LONG())
STATES = [SEEN, ListStateDescriptor("times", Types.LONG())]
TIMER = StructType().add("domain", StringType()).add("timestamp", LongType())
SCHEMA = StructType().add("card", StringType()).add("seen", LongType()).add("times", ArrayType(LongType()))


BY_DAY = MapType(ArrayType(LongType()), LongType())


def frame(schema: StructType = SCHEMA, *, streaming: bool = False) -> Any:
    return SimpleNamespace(schema=schema, isStreaming=streaming, sparkSession=None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"df": frame(streaming=True)}, "takes a batch DataFrame, but this one is streaming"),
        ({"uid": ""}, "uid= must be the operator's uid, such as 'count', not ''"),
        ({"uid": 5}, "uid= must be the operator's uid, such as 'count', not 5"),
        ({"key": "no such"}, "no column 'no such' for operator 'count'; the columns are card, seen, times"),
        ({"key": None}, "key= must be a column name, or a list of column names, not None"),
        ({"key": []}, "key= must be a column name, or a list of column names, not []"),
        ({"key": ["card", 1]}, "key= must be a column name, or a list of column names, not ['card', 1]"),
        (
            {"states": ["seen"]},
            "states= must be a list of descriptors, such as ValueStateDescriptor('seen', Types.LONG()), not ['seen']",
        ),
        ({"states": [ValueStateDescriptor("sum", Types.LONG())]}, "there is no column 'sum' for operator 'count'"),
        (
            {"states": [*STATES, SEEN]},
            "the column 'seen' of operator 'count' is used twice: pass different columns as key=, states= and timers=",
        ),
        (
            {"states": STATES, "key": ["card", "seen"]},
            "the column 'seen' of operator 'count' is used twice: pass different columns as key=, states= and timers=",
        ),
        ({"timers": "due"}, "there is no column 'due' for operator 'count'"),
        (
            {"states": [SEEN], "timers": "times"},
            "the column 'times' is array<bigint>, but timers= must name a column of"
            " type array<struct<domain:string,timestamp:bigint>>",
        ),
        (
            {"states": [SEEN], "timers": "seen"},
            "the column 'seen' of operator 'count' is used twice: pass different columns as key=, states= and timers=",
        ),
        (
            {"df": frame(StructType().add("card", StringType()).add("by_day", BY_DAY))},
            "the column 'by_day' is map<array<bigint>,bigint>, but Python cannot hash its maps' keys: drop it, or",
        ),
        (
            {"key": "times", "states": [SEEN]},
            "the column 'times' of operator 'count' is array<bigint>, which cannot be a key: pass columns of strings",
        ),
        (
            {"df": frame(StructType().add("card", StringType("UTF8_LCASE")).add("seen", LongType()))},
            "the column 'card' of operator 'count' is string collate UTF8_LCASE, which cannot be a key: pass columns",
        ),
        ({"like": "/another"}, "like= already defines key=, states= and timers=: drop these arguments"),
        (
            {"like": "/another", "key": None, "timers": "due"},
            "like= already defines key=, states= and timers=: drop these arguments",
        ),
    ],
)
def test_invalid_state_is_refused_before_a_job_runs(changes: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"df": frame(), "directory": "/new", "uid": "count", "key": "card", "states": None}
    with pytest.raises(ProgramError) as caught:
        write_state(**{**arguments, **changes})
    assert words in str(caught.value)


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(SEEN)

    def process_element(self, value, ctx):
        self.seen.update((self.seen.value() or 0) + 1)


TABLE = StructType().add("key", StringType()).add("seen", LongType())


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (SCHEMA, "table of operator 'count' has no column 'card'; the table's columns are"),
        (
            StructType().add("seen", LongType()),
            "table of operator 'count' has a column 'key', but the DataFrame has none",
        ),
        (
            StructType().add("key", StringType()).add("seen", VariantType()),
            "the column 'seen' of operator 'count' is a VARIANT, which does not preserve the original values: read the",
        ),
    ],
    ids=["another column", "no key", "variant"],
)
def test_rows_that_are_not_those_of_another_savepoint(tmp_path, monkeypatch, schema: StructType, words: str) -> None:
    with ProgramTestHarness(
        lambda env, rows: rows.key_by(lambda value: value.card, key_type=Types.STRING()).process(Count()).uid("count")
    ) as harness:
        harness.push("rows", row(card="a"))
        harness.run_epoch()
        harness.write_savepoint(tmp_path)
    manifest = LocalSavepoint(tmp_path).manifest
    no_spark: Any = None
    opened = OpenSavepoint(no_spark, str(tmp_path), manifest)
    monkeypatch.setattr(savepoint, "open_savepoint", lambda spark, directory: opened)
    with pytest.raises(ProgramError) as caught:
        write_state(frame(schema), "/new", "count", like=str(tmp_path))
    assert words in str(caught.value)
