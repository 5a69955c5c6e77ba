"""Starts queries, and prepares their checkpoints (settings, sink log, first epoch, rescaling).

Start with `start.py`. `started.py` registers started queries. `closing.py` ends their homes (processes that run tasks).
Weak spot: starting a query temporarily changes settings of the whole session, so only one query can start at a
time.
"""
