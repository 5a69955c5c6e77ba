"""The dashboard: web pages that show running and ended queries from their snapshots.

Start with `server.py`, then `app.py`, which has the routes; `guard.py` checks requests. `views.py` builds the pages'
data, as classes of `documents.py`, and `versioned_view.py` sends a page the changed fields. It imports `model` and
`doctor`, and no Spark: `watching` supplies the queries. Starlette and uvicorn (extra `dashboard`) are imported when a
dashboard is opened. Weak spot: the pages' scripts are only tested in a real browser.
"""
