"""What users give to streams, checked while the program is being built, and errors for what is not there.

Imports the layers below `_datastream`, and streams for their types only. Start with `given_functions.py`. `missing.py`
has the methods of Flink that a stream does not have, with what to say instead. Weak spot: `code_search.py` reads a
user's code for a name, and sees only what Python can show of it.
"""
