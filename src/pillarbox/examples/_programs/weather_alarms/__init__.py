"""Alarms for wind: sliding windows, and thresholds that change while the program runs."""
