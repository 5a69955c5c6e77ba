"""The types of stored values: plain types with their names, classes that pickles name, and how large values are.

Imports only what is below `_state`. Start with `type_names.py` and `plain_types.py`: values that a checkpoint holds
without a pickle that names anything else. `class_names.py` finds the classes of all others, and `opaque.py` reads
values without their classes. Weak spot: `sizes.py` estimates, as pickling a value just to know its size would cost more
than writing it.
"""
