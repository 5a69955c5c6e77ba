"""Converts buffers to Spark rows and back, and exchanges Arrow batches with Spark.

Start with `buffer_rows.py`, then `output.py`. Weak spot: Spark's stateful operator takes pandas frames only, so Arrow
batches are wrapped in frames that other code must not touch (`arrow_frame.py`).
"""
