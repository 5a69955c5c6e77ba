"""The error of a rule that cannot say anything."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class UnknownFactsError(Exception):
    """A rule does not know what it has to know; the message says what."""


def known(fact: T | None, what: str) -> T:
    """Return a fact.

    Raises:
        UnknownFactsError: it is None.
    """
    if fact is None:
        raise UnknownFactsError(what)
    return fact
