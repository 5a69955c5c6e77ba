"""Rows of keyed state, and what is in them: marks, slots, and how the names of slots begin.

A *row* is a list: its mark, its address (:mod:`~pillarbox._state.keys.addresses`), then a slot for each state and for
each kind of timers. In the log it stands without the address, so slots are counted from 1 there.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Row = list[Any]
_Marks = TypeVar("_Marks", int, npt.NDArray[np.int64])

# Marks of a row. At least 0: unchanged since the entry of that number was written to the log.
NEW = -1  # changed; the log does not have it

# The place of the first slot in a row.
FIRST_SLOT = 2

# The leads of names of slots: of states that are declared before rows are read, and of states that may be asked for
# at any time, so also after a checkpoint with them was restored.
STATE = "state/"
LATE = "late/"
# Of stamps: when a state with a time-to-live was last accessed. The name of the state's own slot follows.
STAMPS = "ttl/"
# Of list states and union list states of operators. The operator's uid follows, then the name.
LIST = "list/"
UNION = "union/"
# These are kept where the program does not declare them; stamps are cleared then.
KEPT = (LATE, STAMPS, LIST, UNION)

# Kinds of entries in the own state of async operators: of a keyed function its unfinished records, visits of timers,
# and outputs that may not leave yet. Requests and unfinished records are reported as carried.
ELEMENTS = ("element", "visit", "outputs")
CARRIED = ("request", "element")


class SlotSpec(NamedTuple):
    """The content of a slot of the rows: a state's name, or a timer service's; and the kind."""

    name: str
    kind: str

    @property
    def title(self) -> str:
        """The kind and the name of the state, for people."""
        return f"the {self.kind} state {state_name(self.name)!r}"


def state_name(slot: str) -> str:
    """Return the name of a state for people, from that of its slot; stamps of a time-to-live have one, too."""
    lead, _, name = slot.partition("/")
    return f"{name.partition('/')[2]}_last_access" if f"{lead}/" == STAMPS else name


def stale_entry(mark: _Marks) -> _Marks:
    """Return the number of the entry that holds an older value of a row, from its mark; negative: there is none.

    It takes the marks of many rows in an array, too. It is its own inverse: a row that is being changed has the stale
    entry of its mark so far as its mark.
    """
    return -2 - mark
