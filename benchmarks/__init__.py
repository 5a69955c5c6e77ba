# SPDX-License-Identifier: Apache-2.0
"""Compares pillarbox's costs with a user's alternatives: ``python -m benchmarks CASE``, or ``make bench-CASE``.

- ``cases`` has a file for each comparison. Its docstring describes the method. The file defines options, a small size,
  the run, and a table and chart of the figures. Start here.
- ``harness`` is the code that all cases share: sides in separate processes, turns, contests, rows, the machine.
- ``peers`` has the alternatives to pillarbox, and the limits.
- ``report`` keeps results as JSON, and writes tables, charts and sentences into the pages.

The peers' processes import this package in their own environments, so it imports nothing itself.

Weak spot: all figures are from one machine on one day. Ratios of sides that took turns apply to other machines,
absolute numbers do not.
"""
