"""The user's session: settings that programs need, checks of them, and the places where checkpoints lie.

Imports nothing else of `_runtime/spark` except `facts.py`. Start with `session.py`. Weak spot: Spark has settings that
change what a checkpoint means, and each of its versions may add one.
"""
