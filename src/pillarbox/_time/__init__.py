"""Clocks and timers of processing time, watermarks and timers of event time, and durations.

All times are in milliseconds. This package does not depend on operators, tasks or Spark.
"""
