"""Buffers as rows of Spark's, and the batches that Spark takes and gives. Used by workers and by the driver.

Imports `session` and `failures.py` alone of `_runtime/spark`. Start with `buffer_rows.py`, then `output.py`. Weak
spot: Arrow batches become pandas frames for Spark's stateful operator, and back (`arrow_frame.py`).
"""
