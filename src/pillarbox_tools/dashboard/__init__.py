"""The dashboard: web pages that show running and ended queries from their snapshots.

Start with `server.py`, then `app.py`, which has the routes. `views.py` builds the pages' data, as classes of
`documents.py`. It imports `model` and `doctor`, and no Spark: `watching` supplies the queries. Weak spot: the pages'
scripts are only tested in a real browser.
"""
