# SPDX-License-Identifier: Apache-2.0
"""What all cases share.

- ``case`` is what a case is, and how the command line runs one.
- ``process`` puts a side into a process of its own, which answers questions.
- ``stepped`` has queries that get their micro-batches one by one.
- ``jobs`` has jobs over a batch DataFrame, in one Spark.
- ``contest`` is the comparison of many contenders in rows per second; ``runners`` are its contenders at work.
- ``turns`` has turns, medians and tables for all others.
- ``rows`` draws rows, writes them, and says with a checksum what must come of them.
- ``findings`` is what pillarbox's doctor finds in the queries of a case.
- ``machine`` asks Linux for processor time and memory.

Start with ``turns``, then ``contest``. The weak spot: processor time and memory are read from ``/proc``, so most of it
runs on Linux only.
"""
