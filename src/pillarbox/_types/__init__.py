"""The declared types of columns, keys and elements, and the way from Python values to Arrow.

A stream becomes a DataFrame when its user declares the columns: see ``resolve_schema`` for the ways to say it.
``RowEncoder`` then turns records into Arrow batches, by column.
"""
