from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pillarbox
from pillarbox import StreamExecutionEnvironment
from pillarbox._runtime.spark.checkpoint.state import CheckpointState

pytestmark = pytest.mark.spark


class Logs(StatefulProcessor):
    """A processor with a state named like pillarbox's task state."""

    def init(self, handle: Any) -> None:
        self.log = handle.getValueState("log", "n LONG")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        for frame in rows:
            self.log.update((len(frame),))
            yield frame

    def close(self) -> None: ...


@pytest.mark.long("a name that nobody has")
def test_state_called_log_is_not_taken_for_that_of_a_program(spark, tmp_path):
    spark.range(6).write.parquet(str(tmp_path / "in"))
    read = spark.readStream.schema("id LONG").parquet(str(tmp_path / "in"))
    passed = read.groupBy("id").transformWithStateInPandas(Logs(), "id LONG", "append", "None")
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
    largest = env.from_dataframe(passed).key_by("id").reduce(max).uid("largest").to_dataframe("id LONG")
    checkpoint = str(tmp_path / "checkpoint")
    writer = largest.writeStream.format("noop").option("checkpointLocation", checkpoint)
    pillarbox.start(writer.trigger(availableNow=True)).awaitTermination()
    assert len(CheckpointState(spark, checkpoint).stateful) == 1
    assert pillarbox.read_state(spark, checkpoint, "largest").count() == 6
