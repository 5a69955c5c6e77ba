"""Stolen cards in a stream of payments: state, timers, dead letters, and a model that is asked for a score."""
