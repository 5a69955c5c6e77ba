# SPDX-License-Identifier: Apache-2.0
"""The code that all cases share.

- ``case`` defines cases, and runs them from the command line.
- ``process`` runs a side in a separate process, and calls its methods.
- ``stepped`` has queries that receive micro-batches one by one.
- ``jobs`` has jobs over a batch DataFrame, in one Spark.
- ``contest`` compares contenders in rows per second; ``runners`` runs them.
- ``turns`` has turns, medians and tables.
- ``rows`` generates rows, writes them, and computes checksums of the expected results.
- ``findings`` collects the doctor's findings about a case's queries.
- ``machine`` measures processor time and memory on Linux.

Start with ``turns``, then ``contest``. Weak spot: processor time and memory are read from ``/proc``, so most cases run
only on Linux.
"""
