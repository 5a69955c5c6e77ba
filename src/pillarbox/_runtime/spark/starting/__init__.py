"""Starts queries and changes stopped queries: settings, sink log, first epoch, rescaling.

Start with `start.py`. `started.py` keeps the started queries, `closing.py` closes their homes in executors. Weak spot:
a start temporarily changes settings of the whole session, so only one query can start at a time.
"""
