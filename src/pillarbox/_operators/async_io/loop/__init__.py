"""Runs a bounded number of concurrent requests in an event loop or in threads, next to the mailbox thread.

Imports `api`, `frame` and `functions`. Notifies the mailbox thread with mails. Start with `workers.py` and `host.py`.
Weak spot: a function that blocks the event loop delays all requests of its operator.
"""
