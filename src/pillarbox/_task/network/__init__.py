"""How records get into a task and out of it: the gate, buffers, partitioners, and sorting in batch mode.

Imports `vertex.py` and the layers below `_task`. Start with `input_gate.py` and `record_writer.py`; `partitioner.py`
says how the records of an edge are spread. All of it belongs to the mailbox thread. Weak spot: what waits in the gate
is in memory or in temporary files, and its bound belongs to a task, not to the process.
"""
