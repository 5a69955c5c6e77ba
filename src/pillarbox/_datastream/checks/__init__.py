"""Checks of users' arguments when the program is built, and errors for methods that do not exist."""
