"""Starts queries and changes stopped queries: settings, sink log, first epoch, rescaling.

Start with `start.py`. `started.py` keeps the started queries, `closing.py` closes their homes in executors. Weak spot:
settings belong to the whole session, so queries start one after the other.
"""
