"""The simulated programs: operators, event time, timers, state and requests.

``program.py`` defines a program's conditions. Programs of an operator are in its entry of the table of operators;
``tests/simulation/every_program.py`` has all by name.
"""
