"""Conditions for reusing an operator's stored state."""

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
    """Return the conditions, which are stored with the state."""
    factory, inputs = operator.factory, operator.inputs
    note = dict[str, str | Inputs](factory.state_depends_on)
    if factory.keyed and len(inputs) == 2 and all(isinstance(step, KeyByTransformation) for step in inputs):
        upstream = [list(steps_leading_to([step])) for step in inputs]
        source_names = dict(zip(sources, _names(sources)))
        names = [{_name(step, source_names) for step in steps} - {""} for steps in upstream]
        places = [
            {step.effective_uid for step in steps if isinstance(step, OperatorTransformation)} for steps in upstream
        ]
        distinct = kept_inputs(names, places)
        if any(any(names.values()) for names in distinct):
            note[SIDES if factory.sides_are_fixed else INPUTS] = distinct
    return note


def _name(step: Transformation, sources: dict[SourceTransformation, str]) -> str:
    """Return a step's name that survives changes of other steps, or ""."""
    if isinstance(step, SourceTransformation):
        return sources[step]
    if isinstance(step, SideOutputTransformation):
        return f"side output {step.tag_id!r}"
    return repr(step.uid) if isinstance(step, OperatorTransformation) and step.uid is not None else ""


def _names(sources: Sequence[SourceTransformation]) -> Iterator[str]:
    every = [source.name for source in sources]
    for source in sources:
        position = sum(other.name == source.name and other.number < source.number for other in sources)
        yield f"source {source.name!r}" + (f" ({position + 1})" if every.count(source.name) > 1 else "")
