"""A program as the user built it, and as a runtime runs it: vertices and levels."""
