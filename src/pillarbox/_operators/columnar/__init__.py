"""Aggregates of windows on columns: rows are grouped by Arrow, before the shuffle and behind it."""
