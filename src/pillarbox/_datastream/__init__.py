"""The public API: streams, functions and the environment, with PyFlink's names.

Start with `environment/environment.py`, then `streams/data_stream.py`. Methods check their arguments (`checks`) and add
a step to the program (`_graph`). Weak spot: stream modules import each other inside methods, because each kind of
stream has methods that return other kinds.
"""
