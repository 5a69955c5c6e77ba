"""Operators with two inputs: two connected streams, and a stream with a broadcast stream.

Imports `frame`, `functions`, `stateless` and `keyed`. Start with `two_inputs.py`. Weak spot: the order of the two
inputs is undefined.
"""
