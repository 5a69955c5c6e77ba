"""Simulated programs: event time, timers, state and requests.

Programs for a single operator are in the operator table. ``tests/simulation/every_program.py`` lists all programs.
"""
