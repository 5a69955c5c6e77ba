"""What the state of one program would be to another, from the heads of their logs alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pillarbox._state.chunks.head import LogHead
from pillarbox._state.slots import LIST, UNION, state_name
from pillarbox._state.types.type_names import TypeName, parse, refusal


@dataclass
class StateChanges:
    """The changes of an operator's states, a message for each.

    Attributes:
        refused: changes with which a checkpoint cannot be used.
        doubtful: changes that may be refused: nothing tells whether the program declares what they take.
        carried_out: changes that the first epoch carries out.
    """

    refused: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
    carried_out: list[str] = field(default_factory=list)


def compare_states(then: LogHead, now: LogHead) -> StateChanges:
    """Compare the states of an operator that a log holds with those of another log of it, by a later program."""
    found = StateChanges()
    operator = f"operator {then.operator!r}"
    old, new = dict(_states(then)), dict(_states(now))
    kept = {slot: now.former.get(slot, slot) for slot in old}
    for slot, name in kept.items():
        what = f"{operator}: the {old[slot]} state {_format_slot(slot)!r}"
        if not name:
            found.carried_out.append(f"{what} is deleted")
        elif name != slot and name in old:
            found.refused.append(
                f"{what} is to be called {_format_slot(name)!r}, and there is a state of that name: declare both, or"
                " delete one of them with runtime_context.delete_if_exists()"
            )
        elif name not in new:
            found.refused.append(
                f"{what} is no more: let another one say renamed_from({_format_slot(slot)!r}), or delete it with"
                " runtime_context.delete_if_exists()"
            )
        elif new[name] != old[slot]:
            found.refused.append(f"{what} is a {new[name]} state: give it another name")
        else:
            if name != slot:
                found.carried_out.append(f"{what} is called {_format_slot(name)!r} now")
            one, other = then.types.get(slot), now.types.get(name)
            if one is not None and other is not None:
                _compare_types(what, parse(one), parse(other), found)
    found.doubtful += [
        f"{operator}: nobody asks for the list state {_format_slot(slot)!r} (uid and name): it is refused where"
        " anything is in it; set uid() to the old one, or delete it with delete_if_exists() of the operator state store"
        for slot in sorted(_lists(then) - _lists(now))
    ]
    found.carried_out += [
        f"{operator}: the {kind} state {_format_slot(slot)!r} is new"
        for slot, kind in new.items()
        if slot not in kept.values()
    ]
    return found


def _compare_types(what: str, then: TypeName, now: TypeName, found: StateChanges) -> None:
    if then == now:
        return
    why = refusal(then, now, {})
    if why is None:
        changes = f"{then} becomes {now}" if str(then) != str(now) else "fields of its classes have changed"
        found.carried_out.append(f"{what}: {changes}")
        return
    old, new = (_classes(each) for each in (then, now))
    (found.doubtful if old - new and new - old else found.refused).append(f"{what}: {why}")


def _format_slot(slot: str) -> str:
    return state_name(slot.removeprefix("space/"))


def _classes(name: TypeName) -> set[str]:
    return {each.kind for each in name.every() if each.is_class}


def _lists(head: LogHead) -> set[str]:
    """Return the names of slots of list states of operators, those that are chained as well."""
    return {name for _, layout in head.space_layouts for name, _ in layout if name.startswith((LIST, UNION))}


def _states(head: LogHead) -> Iterator[tuple[str, str]]:
    """Return the names of slots of states that are declared in time, and their kinds, as of the newest chunks."""
    for lead, layouts in (("", head.layouts), ("space/", head.space_layouts)):
        slots: Iterable[tuple[str, str]] = layouts[-1][1] if layouts else ()
        for name, kind in slots:
            if kind != "timers" and name.startswith("state/"):
                yield lead + name, kind
