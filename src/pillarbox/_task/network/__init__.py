"""The input and output of a task: the gate, buffers, partitioners, and sorting in batch mode.

Start with `input_gate.py` and `record_writer.py`. Mailbox thread only. Weak spot: the memory for buffers that wait in
the gate (the rest is in temporary files) is limited per task, not per process.
"""
