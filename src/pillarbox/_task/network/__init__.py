"""Records entering and leaving a task: the gate, buffers, partitioners, and sorting in batch mode.

Start with `input_gate.py` and `record_writer.py`. All of it belongs to the mailbox thread. Weak spot: buffers that wait
in the gate are in memory or in temporary files, and their bound applies to a task, not to the process.
"""
