"""The dashboard: pages that show queries while they run, and afterwards, from their snapshots.

Start with `server.py`, then `app.py`, which has the routes; `guard.py` decides who may ask. `views.py` makes what the
pages draw, as objects of the classes in `documents.py`, and `changes.py` sends a page the fields that have changed.
It imports `model` and `doctor`, and knows no Spark: `watching` hands it queries. Starlette and uvicorn (extra
`dashboard`) are imported when a dashboard is opened. Weak spot: the scripts of the pages have no tests but those in a
real browser.
"""
