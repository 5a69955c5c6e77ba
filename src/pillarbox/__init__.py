"""Flink's task model for PySpark: keyed state, timers, windows and async I/O on Spark alone."""

__version__ = "0.1.0"
