"""Starts queries, and prepares sessions and checkpoints for them.

Start with `start.py`, then `started.py`, which registers started queries. Weak spot: starting a query temporarily
changes settings of the whole session, so only one query can start at a time.
"""
