"""Processing time and its timers, event time and its watermarks, durations.

All times are in milliseconds. Nothing here knows operators, tasks or Spark.
"""
