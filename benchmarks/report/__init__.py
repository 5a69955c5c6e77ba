# SPDX-License-Identifier: Apache-2.0
"""Results, and the pages that show them.

- ``results`` lists the runs, and writes and reads their results in ``docs/benchmarks``.
- ``pages`` fills the blocks in README.md and in the pages of ``docs``. Each case has its own blocks.
- ``first_page`` makes the block in README.md, from several cases, and describes the machines.
- ``charts`` draws charts, and ``words`` formats figures in sentences.

Start with ``pages``. Weak spot: a very different figure can make a generated sentence wrong, and nothing checks that.
"""
