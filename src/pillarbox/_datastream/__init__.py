"""The public API: streams, functions and the environment, with PyFlink's names.

Start with `environment/environment.py`, then `streams/data_stream.py`. A method checks its arguments (`checks`), and
adds a step to the program of `_graph`. Weak spot: streams name each other, as the API does.
"""
