"""The API of async I/O: functions, retries, fallbacks, caches, options.

Imports `frame`, `functions` and the layers below `_operators`. Start with `function.py` and `options.py`. Weak spot:
some options need libraries that a worker may lack, which is detected only when the task starts (`libraries.py`).
"""
