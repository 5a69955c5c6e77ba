"""How long visitors stay: session windows by columns, and the same windows with Python functions."""
