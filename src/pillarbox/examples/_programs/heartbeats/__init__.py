"""Devices that have gone silent: timers of processing time, and epochs without data."""
