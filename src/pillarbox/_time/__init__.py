"""Processing time and its timers, event time and its watermarks, durations.

All times are in milliseconds. Nothing here depends on operators, tasks or Spark.
"""
