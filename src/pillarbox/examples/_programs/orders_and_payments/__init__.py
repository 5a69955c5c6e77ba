"""Orders that nobody paid within ten minutes: two keyed streams that share state, a timer, and a side output."""
