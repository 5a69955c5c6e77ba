"""Time: processing time and its timers, event time and its watermarks, durations.

All times are in milliseconds. Nothing here knows operators, tasks or Spark.
"""

from pillarbox._time.clock import ProcessingTimeCallback, ProcessingTimeService, ScheduledTimer, ServiceState
from pillarbox._time.duration import Duration, DurationLike, Time, positive_millis, to_millis
from pillarbox._time.epoch_valve import EpochValve
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox._time.operator_clock import ProcessingTimeServiceImpl
from pillarbox._time.system_clock import SystemProcessingTimeService, processing_time_delay, system_clock_ms
from pillarbox._time.timestamps import (
    MAX_WATERMARK,
    MIN_TIMESTAMP,
    ColumnTimestampAssigner,
    TimestampAssigner,
    as_timestamp_assigner,
    to_timestamp,
)
from pillarbox._time.valve import StatusWatermarkValve
from pillarbox._time.watermark_generators import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    MonotoneWatermarkOutput,
    NoWatermarksGenerator,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkSink,
    WatermarksWithIdleness,
)
from pillarbox._time.watermark_strategy import WatermarkStrategy

__all__ = [
    "MAX_WATERMARK",
    "MIN_TIMESTAMP",
    "AscendingTimestampsWatermarks",
    "BoundedOutOfOrdernessWatermarks",
    "ColumnTimestampAssigner",
    "Duration",
    "DurationLike",
    "EpochValve",
    "ManualProcessingTimeService",
    "MonotoneWatermarkOutput",
    "NoWatermarksGenerator",
    "ProcessingTimeCallback",
    "ProcessingTimeService",
    "ProcessingTimeServiceImpl",
    "ScheduledTimer",
    "ServiceState",
    "StatusWatermarkValve",
    "SystemProcessingTimeService",
    "Time",
    "TimestampAssigner",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkSink",
    "WatermarkStrategy",
    "WatermarksWithIdleness",
    "as_timestamp_assigner",
    "positive_millis",
    "processing_time_delay",
    "system_clock_ms",
    "to_millis",
    "to_timestamp",
]
