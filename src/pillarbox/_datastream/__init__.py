"""The public API: streams, functions and the environment, with PyFlink's names.

Start with `environment/environment.py`, then `streams/data_stream.py`. A method checks its arguments (`checks`), and
adds a step to the program of `_graph`. Weak spot: the modules of streams import each other inside methods, because each
kind of stream returns the others.
"""
