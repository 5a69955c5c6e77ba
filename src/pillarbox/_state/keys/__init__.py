"""Whose a row is: key groups, the addresses of rows, and the descriptions of keys and operators that lie next to state.

Imports only what is below `_state`. Start with `key_groups.py`: how keys are spread over subtasks. The hash of a key is
part of every checkpoint, so it never changes. Weak spot: `key_note.py` and `state_note.py` describe what the program
says, not what its functions do.
"""
