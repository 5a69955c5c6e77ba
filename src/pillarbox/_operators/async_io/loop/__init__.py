"""Where requests run: an event loop or threads next to the mailbox thread, a bounded number at a time.

Imports `api`, `frame` and `functions`; the mailbox thread is reached by mails only. Start with `workers.py`, then
`host.py`. Weak spot: a function that blocks the event loop holds up all requests of its operator.
"""
