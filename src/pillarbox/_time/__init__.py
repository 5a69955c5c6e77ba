"""Time: processing time and its timers, event time and its watermarks, durations.

All times are in milliseconds. Nothing here knows operators, tasks or Spark.
"""

from pillarbox._time.clock import ProcessingTimeCallback, ProcessingTimeService, ScheduledTimer
from pillarbox._time.duration import Duration, Time
from pillarbox._time.epoch_valve import EpochValve
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox._time.operator_clock import ProcessingTimeServiceImpl
from pillarbox._time.system_clock import SystemProcessingTimeService
from pillarbox._time.timestamps import (
    MAX_WATERMARK,
    MIN_TIMESTAMP,
    TimestampAssigner,
    to_timestamp,
)
from pillarbox._time.watermark_generators import (
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
    "Duration",
    "EpochValve",
    "ManualProcessingTimeService",
    "MonotoneWatermarkOutput",
    "NoWatermarksGenerator",
    "ProcessingTimeCallback",
    "ProcessingTimeService",
    "ProcessingTimeServiceImpl",
    "ScheduledTimer",
    "SystemProcessingTimeService",
    "Time",
    "TimestampAssigner",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkSink",
    "WatermarkStrategy",
    "WatermarksWithIdleness",
    "to_timestamp",
]
