"""Operators with two inputs: two connected streams, or a stream and a broadcast stream.

Imports `frame`, `functions`, `stateless` and `keyed`. Start with `two_inputs.py`. Weak spot: the inputs are interleaved
in an undefined order, which may differ when an epoch is repeated.
"""
