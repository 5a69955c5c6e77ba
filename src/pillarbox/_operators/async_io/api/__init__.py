"""The API of async I/O: functions, retries, fallbacks, caches, options.

Imports `frame`, `functions` and the layers below `_operators`. Start with `function.py`, then `options.py`. Weak spot:
some options need libraries that a worker may lack, and this error appears only when the task starts (`libraries.py`).
"""
