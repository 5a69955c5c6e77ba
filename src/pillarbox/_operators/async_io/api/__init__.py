"""What users say about requests: functions, retries, fallbacks, caches, options; and what a request is.

Imports `frame`, `functions` and the layers below `_operators`. Start with `function.py`, then `options.py`; names and
meaning are PyFlink's, where it has them. Weak spot: some options need libraries that other workers do without
(`libraries.py`).
"""
