"""The simulated programs: operators, event time, timers, state and requests.

An operator's programs are in its entry of the table of operators; ``tests/simulation/every_program.py`` has all by
name.
"""
