"""The input and output of a task: the gate, buffers, partitioners, and sorting in batch mode.

Start with `input_gate.py` and `record_writer.py`. Everything belongs to the mailbox thread. Weak spot: buffers that
wait in the gate are in memory or in temporary files, and their limit applies to each task, not to the process.
"""
