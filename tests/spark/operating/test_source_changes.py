"""Sources that are added, removed or moved before a start from a savepoint. (For Kafka, see tests/kafka.)"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest

import pillarbox
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor

_VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))
_NAMES = pytest.mark.skipif(_VERSION < (4, 2), reason="sources have names of Spark's since 4.2")


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", default=0))

    def process_element(self, value, ctx):
        self.seen.update(self.seen.value() + 1)
        yield value.key, self.seen.value()


@pytest.mark.long("five queries; runtime/savepoint/test_source_positions.py has sources that come and go")
@pytest.mark.parametrize("named_in_spark", [False, pytest.param(True, marks=_NAMES)])
def test_sources_come_go_and_change_their_places(spark: Any, tmp_path: Path, named_in_spark: bool) -> None:
    spark = spark.newSession()
    spark.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", str(named_in_spark).lower())
    files: Counter[str] = Counter()

    def add(source: str, *keys: str) -> None:
        folder = tmp_path / source
        folder.mkdir(exist_ok=True)
        files[source] += 1
        (folder / f"{files[source]}.json").write_text("\n".join(json.dumps({"key": key}) for key in keys))

    def run(checkpoint: str, *sources: str, names: Mapping[str, str] = {}, **how: Any) -> list[Any]:
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
        if how:
            env.from_savepoint(tmp_path / "savepoint", **how)
        streams = []
        for source in sources:
            reader = spark.readStream.name(source) if named_in_spark else spark.readStream
            name = "dataframe" if named_in_spark else names.get(source, source)
            streams.append(env.from_dataframe(reader.schema("key STRING").json(str(tmp_path / source)), name))
        rows = streams[0].union(*streams[1:]).key_by("key").process(Count()).uid("count")
        seen: list[Any] = []
        writer = rows.to_dataframe("key STRING, n INT").writeStream.trigger(availableNow=True)
        writer = writer.foreachBatch(lambda batch, number: seen.extend(map(tuple, batch.collect())))
        pillarbox.start(writer.option("checkpointLocation", str(tmp_path / checkpoint))).awaitTermination()
        return sorted(seen)

    for source in ("a", "b"):
        add(source, "x", source)
    assert run("first", "a", "b") == [("a", 1), ("b", 1), ("x", 1), ("x", 2)]
    pillarbox.savepoint(spark, str(tmp_path / "first"), str(tmp_path / "savepoint"))
    for source in ("b", "c"):
        add(source, "x", source)
    # Both existing and later input reaches the right source.
    assert run("second", "c", "b", allow_non_restored_state=True) == [("b", 2), ("c", 1), ("x", 3), ("x", 4)]
    add("b", "b")
    assert run("second", "c", "b", allow_non_restored_state=True) == [("b", 3)]
    if not named_in_spark:
        swapped = {"a": "b", "b": "a"}
        assert run("third", "b", "a", names=swapped, renamed=swapped) == [("b", 2), ("b", 3), ("x", 3)]
