"""Clocks, timers, watermarks and durations.

All times are in milliseconds. This package does not depend on operators, tasks or Spark.
"""
