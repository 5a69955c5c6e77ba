"""Examples to take and change: a folder each, with a README, ``program.py`` and its data.

``python -m pillarbox.examples`` lists them, ``python -m pillarbox.examples NAME`` runs one, and with ``--copy DIR`` it
copies one into a new folder. They use nothing but what users have: the public names of ``pillarbox``. Start reading in
``_programs/fraud/README.md``. No part of pillarbox may import this package.
"""
