"""Savepoints: state as plain tables, from which logs are written for any number of subtasks.

A savepoint is a directory of Parquet tables with a manifest (docs/savepoint-format.md). Imports all other packages of
`_state`, and Arrow; it knows neither Spark nor a program. Start with `table.py`, then `log_builder.py`. Weak spot: what
has no declared type is a pickle in a column.
"""
