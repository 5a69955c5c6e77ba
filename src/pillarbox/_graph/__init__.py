"""Compiles the user's steps to a program of vertices (operator chains) and levels."""
