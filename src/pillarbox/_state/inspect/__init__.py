"""Reading state without the program that wrote it, and without importing or running anything that it names.

Imports all packages of `_state` except `savepoint`. Start with `view.py`: the rows of a log, by state, with notes of
how pickles make stand-ins instead of the objects. `changes.py` compares the state of two programs. Weak spot: values
pickled by the user in ways of their own are shown as what their pickles call, not as what they mean.
"""
