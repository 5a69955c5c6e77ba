"""Buffers as Spark rows, and the Arrow batches exchanged with Spark.

Start with `buffer_rows.py`, then `output.py`. Weak spot: Arrow batches become pandas frames for Spark's stateful
operator, and back (`arrow_frame.py`).
"""
