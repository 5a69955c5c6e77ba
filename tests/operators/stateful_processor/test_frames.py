from __future__ import annotations

import pandas as pd
import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pillarbox import OperatorError
from tests.operators.stateful_processor.micro_batches import MicroBatches


class Frames(StatefulProcessor):
    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        for frame in rows:
            self.handle.registerTimer(5)
            kinds = " ".join(map(str, frame.dtypes))
            yield pd.DataFrame({"v": [len(frame)], "k": [f"{key} {kinds} {frame['v'].tolist()} {list(frame.index)}"]})

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield pd.DataFrame({"k": [repr(key)], "v": [expiredTimerInfo.getExpiryTimeInMs()]})


def test_frames_are_cut_and_pandas_finds_out_their_types():
    batches = MicroBatches(Frames(), mode="eventtime", pandas=2)
    assert batches.run([("b", 0, 1), ("a", 0, 1), ("b", 0, 2), ("b", 0, 3)], 0) == [
        ("('a',) object datetime64[ns] int64 [1] [0]", 1),
        ("('b',) object datetime64[ns] int64 [1, 2] [0, 1]", 2),
        ("('b',) object datetime64[ns] int64 [3] [0]", 1),
    ]
    assert batches.run([], 1, watermark=5) == [("Row(k='a')", 5), ("Row(k='b')", 5)]


def test_numbers_are_floats_where_there_are_nulls():
    emitted = MicroBatches(Frames(), mode="eventtime", pandas=9).run([("a", 0, 1), ("b", 0, None)], 0)
    assert [text.partition("[ns] ")[2] for text, _ in emitted] == ["float64 [1.0] [0]", "float64 [nan] [0]"]


def test_times_in_a_timer_s_key_are_in_the_zone_of_the_frames():
    class Keys(Frames):
        def handleInputRows(self, key, rows, timerValues):
            self.handle.registerTimer(5)
            yield pd.DataFrame({"k": [f"{key[0]}"], "v": [0]})

        def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
            yield pd.DataFrame({"k": [f"{key[0]}"], "v": [5]})

    batches = MicroBatches(Keys(), mode="eventtime", pandas=9, zone="America/New_York", key=("t",))
    emitted = batches.run([("a", 1_700_000_000_000, 1)], 0, watermark=5)
    assert emitted == [("2023-11-14 17:13:20", 0), ("2023-11-14 17:13:20", 5)]


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (5, "Invalid return type. Please make sure that the UDF returns a pandas.DataFrame"),
        (pd.DataFrame({"k": ["a"]}), "KeyError.*not in index"),
        (pd.DataFrame({"k": [5], "v": ["x"]}), "Failed to convert the value of the column 'v'|Cannot convert"),
    ],
)
def test_wrong_results_are_spark_s_errors(result, error):
    class Wrong(Frames):
        def handleInputRows(self, key, rows, timerValues):
            yield result

    with pytest.raises(OperatorError, match=error):
        MicroBatches(Wrong(), pandas=9).run([("a", 0, 1)])
