# SPDX-License-Identifier: Apache-2.0
"""What pillarbox costs beside the alternatives that a user has: ``python -m benchmarks CASE``, or ``make bench-CASE``.

- ``cases`` has a file for each comparison. Its docstring is the method; the file says its options, its small size, what
  it runs, and the table and chart that show its figures. Start here.
- ``harness`` is what all cases share: sides in processes of their own, turns, contests, rows, the machine.
- ``peers`` are those that pillarbox is compared with, and the limits.
- ``report`` keeps results as JSON, and writes tables, charts and sentences into the pages.

The processes of peers import this package in environments of their own, so it imports nothing by itself.

The weak spot: all figures are of one machine on one day. Ratios of sides that took turns carry over to others, absolute
numbers do not.
"""
