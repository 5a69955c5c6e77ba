"""Explains why a chain's state is not found: it is stored under the uid of the chain's first operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Chains = Mapping[str, Sequence[str]]


def other_first_operator(uid: str, then: Chains, now: Chains) -> str | None:
    """Return the change if the chain that ``uid`` began has another first operator, otherwise None.

    Args:
        then: maps each chain's first uid to its other uids, in the state's program.
        now: the same for the new program.
    """
    stored = "and a chain's state is stored under its first operator's uid"
    first = next((head for head, others in now.items() if uid in others), None)
    if first is not None:
        return (
            f"operator {uid!r} was the first of its chain, and now follows {first!r}, {stored}: add {first!r} before"
            f" the shuffle, or after {uid!r}"
        )
    first = next((head for head in now if head in then.get(uid, ())), None)
    if first is not None:
        return (
            f"operator {first!r} followed {uid!r}, and is now the first of its chain, {stored}: keep {uid!r} or, if it"
            f" has no state, replace it by map(lambda record: record).uid({uid!r})"
        )
    return None
