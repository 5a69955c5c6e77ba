"""What the state of an operator depends on in its program: what its factory says, and where its inputs come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pillarbox._graph.transformations import (
    KeyByTransformation,
    OperatorTransformation,
    SideOutputTransformation,
    SourceTransformation,
    Transformation,
    steps_leading_to,
)
from pillarbox._state.keys.state_note import INPUTS, SIDES, Inputs, StateNote, kept_inputs


def dependence(operator: OperatorTransformation, sources: Sequence[SourceTransformation]) -> StateNote:
    """Return what a checkpoint notes of what the operator's state depends on.

    Args:
        sources: the program's sources.
    """
    factory, inputs = operator.factory, operator.inputs
    note = dict[str, str | Inputs](factory.state_depends_on)
    if factory.keyed and len(inputs) == 2 and all(isinstance(each, KeyByTransformation) for each in inputs):
        found = [list(steps_leading_to([each])) for each in inputs]
        known = dict(zip(sources, _names(sources)))
        names = [{_name(step, known) for step in steps} - {""} for steps in found]
        places = [{step.effective_uid for step in steps if isinstance(step, OperatorTransformation)} for steps in found]
        kept = kept_inputs(names, places)
        if any(any(each.values()) for each in kept):
            note[SIDES if factory.sides_are_fixed else INPUTS] = kept
    return note


def _name(step: Transformation, sources: dict[SourceTransformation, str]) -> str:
    """Return the name of a step that stays where others come and go; nothing: it has none."""
    if isinstance(step, SourceTransformation):
        return sources[step]
    if isinstance(step, SideOutputTransformation):
        return f"side output {step.tag_id!r}"
    return repr(step.uid) if isinstance(step, OperatorTransformation) and step.uid is not None else ""


def _names(sources: Sequence[SourceTransformation]) -> Iterator[str]:
    """Return a name for each source; sources of the same name are numbered in their order, as Spark does."""
    every = [source.name for source in sources]
    for source in sources:
        place = sum(other.name == source.name and other.number < source.number for other in sources)
        yield f"source {source.name!r}" + (f" ({place + 1})" if every.count(source.name) > 1 else "")
