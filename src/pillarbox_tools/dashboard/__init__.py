"""The dashboard: web pages that show running and ended queries from their snapshots.

Imports `model` and `doctor`, and no Spark; `watching` supplies the queries. Start with `server.py`, then `app.py`,
which has the routes. Weak spot: only tests in a real browser run the pages' scripts.
"""
