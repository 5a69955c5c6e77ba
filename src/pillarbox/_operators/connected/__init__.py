"""Operators with two inputs: two connected streams, and a stream with a broadcast one.

Imports `frame`, `functions`, and the operators of one input in `stateless` and `keyed`, on which these are built. Start
with `two_inputs.py`. Weak spot: nothing says in which order the two inputs come.
"""
