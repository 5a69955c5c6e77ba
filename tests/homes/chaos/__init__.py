"""Faults of the processes that homes depend on, drawn from a seed, with real processes and a Spark of dictionaries."""
