"""Compiles the user's steps into a program of vertices (operator chains) and levels."""
