"""Totals that begin with history, without the orders that arrive twice: deduplicate, write_state, time-to-live."""
