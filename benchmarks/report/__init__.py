# SPDX-License-Identifier: Apache-2.0
"""Results, and the pages that show them.

- ``results`` has the runs, keeps their results in ``docs/benchmarks``, and reads them.
- ``pages`` fills in the blocks of README.md and of the pages of ``docs``; each case has its own blocks.
- ``first_page`` is the block of README.md, made of several cases, and the machines.
- ``charts`` draws, ``words`` writes figures in sentences; cases use both.

Start with ``pages``. The weak spot: sentences are made of figures, so a figure that turns out quite differently can
make a sentence wrong that nobody reads again.
"""
