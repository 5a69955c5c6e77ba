"""The programs that are simulated: of operators, and of event time, timers, state and requests as such.

``program.py`` says what is promised about a program. Those of an operator are in its entry of the table of operators,
by reference or as a whole; ``tests/simulation/every_program.py`` has all by name.
"""
