"""Writes, reads and restores savepoints.

Start with `savepoint.py`, then `restore_host.py`. Weak spot: a savepoint without a manifest is incomplete, so every
reader must first check for the manifest.
"""
