"""A task's input and output: the input gate, buffers, partitioners, and sorting in batch mode.

Start with `input_gate.py` and `record_writer.py`. Weak spot: the memory for buffers that wait in the gate is limited
per task (further buffers are written to temporary files), but not per process.
"""
