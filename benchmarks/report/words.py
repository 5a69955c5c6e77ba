# SPDX-License-Identifier: Apache-2.0
"""Formats figures in sentences."""

from __future__ import annotations

import textwrap

WIDTH = 125


def paragraph(*sentences: str) -> str:
    """Return a paragraph, wrapped like handwritten paragraphs."""
    return textwrap.fill(" ".join(sentences), WIDTH, break_long_words=False, break_on_hyphens=False)


def page(*parts: str) -> str:
    """Return the nonempty parts of a page, separated by blank lines."""
    return "\n\n".join(filter(None, parts))


def times(factor: float) -> str:
    """Format a factor with two or three digits."""
    return f"{factor:.0f}" if factor >= 10 else f"{factor:.1f}" if factor >= 2 else f"{factor:.2f}"


def precise(value: float) -> str:
    """Format a rate with three digits."""
    return f"{float(f'{value:.3g}'):,.0f}"
