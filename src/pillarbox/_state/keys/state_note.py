"""What an operator's state depends on besides its key, noted with the state: so that a change does not go unnoticed.

State of windows of three records says nothing to windows of five, and what an operator keeps of its left input is no
record of the right one; rows do not tell. So an operator says in the program what its state depends on
(:class:`~pillarbox._operators.frame.operator.OperatorFactory`), and the state log, the description of a program next to
a checkpoint, and savepoints note it. Settings that only decide about new records are not noted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: Plain data, since checkpoints hold it: phrases, each under the name of what it tells of, and notes of inputs.
StateNote = Mapping[str, Any]

#: Where the streams of both inputs come from, of an operator that keeps records of each, or
SIDES = "sides"
#: of one whose function keeps what it likes.
INPUTS = "inputs"

#: For each input: where its stream comes from, by names that stay, and by those that only tell where nothing was added.
Inputs = list[dict[str, list[str]]]

_BY_NAME, _BY_PLACE = "names", "places"


def kept_inputs(names: Sequence[set[str]], places: Sequence[set[str]]) -> Inputs:
    """Return the note of two inputs, as far as they differ.

    Args:
        names: where each stream comes from, by names that the user has given.
        places: the same by names that depend on the place in the program.
    """
    by_name = [sorted(mine - other) for mine, other in zip(names, names[::-1])]
    by_place = [sorted(mine - other) for mine, other in zip(places, places[::-1])]
    if any(by_name):
        return [{_BY_NAME: each} for each in by_name]
    return [{_BY_PLACE: each} for each in by_place]


def state_change(then: StateNote | None, now: StateNote | None) -> tuple[bool, str] | None:
    """Compare what the state in a checkpoint depends on with what a program's state depends on.

    Returns:
        None where nothing prevents resuming; else whether state would surely be lost or mixed, and a message's
        rest: "it kept ..., and keeps ...".
    """
    for name in sorted((then or {}).keys() & (now or {}).keys()):
        assert then is not None and now is not None
        before, after = then[name], now[name]
        if name in (SIDES, INPUTS):
            change = _swapped(before, after)
            if change is not None:
                surely, what = change
                return surely and name == SIDES, what
        elif before != after:
            return True, f"it kept {before}, and keeps {after}"
    return None


def _swapped(then: Inputs, now: Inputs) -> tuple[bool, str] | None:
    """Compare the notes of two inputs: tell whether they have surely changed places, or None where they have not."""
    names, new_names = ([set(each.get(_BY_NAME, ())) for each in note] for note in (then, now))
    what = "its inputs have changed places"
    if any(names) and any(new_names):
        stays, moved = _common(names, new_names), _common(names, new_names[::-1])
        one = ", ".join(sorted(names[0] & new_names[1]) or sorted(names[1] & new_names[0]))
        which = "first" if names[0] & new_names[1] else "second"
        other = "second" if which == "first" else "first"
        return (
            (True, f"{what}: the {which} one came from {one}, and that is the {other} now") if moved > stays else None
        )
    places = [each.get(_BY_PLACE, []) for each in then]
    if any(places) and places != places[::-1] and places == [each.get(_BY_PLACE, []) for each in now][::-1]:
        return False, f"{what}, unless only their definitions have: the first one came from {', '.join(places[0])}"
    return None


def _common(then: Sequence[set[str]], now: Sequence[set[str]]) -> int:
    return sum(len(before & after) for before, after in zip(then, now))
