"""Buffers as Spark rows, and the Arrow batches exchanged with Spark. Used by workers and by the driver.

Imports only `session` and `failures.py` from `_runtime/spark`. Start with `buffer_rows.py`, then `output.py`. Weak
spot: Arrow batches become pandas frames for Spark's stateful operator, and back (`arrow_frame.py`).
"""
