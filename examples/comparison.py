"""The comparison of a demo's results with its oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any


def equals_the_oracle(results: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Compare sorted results with the oracle's sorted results, and print the outcome."""
    if results == expected:
        print(f"equal to the oracle: {len(results):,} rows, row for row")
        return True
    extra, missing = Counter(results) - Counter(expected), Counter(expected) - Counter(results)
    print(f"NOT equal to the oracle: {extra.total():,} rows too many, {missing.total():,} rows missing, such as")
    for sign, rows in (("+", extra), ("-", missing)):
        for row in list(rows)[:3]:
            print(f"  {sign} {row}")
    return False
