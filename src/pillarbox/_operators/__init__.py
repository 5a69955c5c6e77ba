"""Operators, one a file, and the functions that users give them."""
