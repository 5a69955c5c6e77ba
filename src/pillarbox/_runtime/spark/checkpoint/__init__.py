"""A query's checkpoint from outside: its files, the programs that are noted beside it, and its state.

Imports `settings` and `facts.py`. Start with `description.py`: the notes. `checkpoint_files.py` reads state logs with
Spark's own readers. Weak spot: `rescale.py` has Spark move state, between two epochs of a stopped query.
"""
