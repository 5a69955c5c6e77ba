"""The dashboard: web pages that show snapshots of running and ended queries.

Imports `model` and `doctor`, but no Spark; `watching` supplies the queries. Start with `server.py`, then `app.py`,
which has the routes. Weak spot: only tests in a real browser run the pages' scripts.
"""
