# SPDX-License-Identifier: Apache-2.0
"""How figures are written in sentences."""

from __future__ import annotations

import textwrap

WIDTH = 125


def paragraph(*sentences: str) -> str:
    """Return a paragraph, wrapped as those that are written by hand."""
    return textwrap.fill(" ".join(sentences), WIDTH, break_long_words=False, break_on_hyphens=False)


def page(*parts: str) -> str:
    """Return the parts of a page that are not empty, with lines between them."""
    return "\n\n".join(filter(None, parts))


def times(factor: float) -> str:
    """Write a factor with two or three digits."""
    return f"{factor:.0f}" if factor >= 10 else f"{factor:.1f}" if factor >= 2 else f"{factor:.2f}"


def precise(value: float) -> str:
    """Write a rate with three digits."""
    return f"{float(f'{value:.3g}'):,.0f}"
