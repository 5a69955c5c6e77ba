"""Methods of streams that work on columns: schemas, aggregates of windows, interval joins.

Imports `checks` and the layers below `_datastream`. Start with `schemas.py`: wrong columns are refused while the program
is being built. Weak spot: the operators are in `_operators/columnar`, and each option is named here and there.
"""
