"""Scores of payments: a model that is a plain function of batches, and that a broadcast stream replaces."""
