"""Flink's task model for PySpark: keyed state, timers, windows and async I/O, with Spark as the only engine."""

__version__ = "0.1.0"
