# SPDX-License-Identifier: Apache-2.0
"""Names of side outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pillarbox._errors import ProgramError, shorten
from pillarbox._generics import Generic, T
from pillarbox._unpickle import make

if TYPE_CHECKING:
    from pillarbox._types.type_information import TypeInformation


class OutputTag(Generic[T]):
    """Names a side output whose records have type ``T``.

    In a process function, ``yield tag, value`` and ``ctx.output(tag, value)`` emit to the side output.
    ``DataStream.get_side_output(tag)`` reads it. Tags with the same id are equal.

    Args:
        tag_id: a non-empty string, unique among an operator's side outputs.
        type_info: the type that records are converted to, or None for no conversion.

    Example:
        >>> LATE = OutputTag[str]("late")
        >>> LATE == OutputTag("late")
        True
    """

    __slots__ = ("tag_id", "type_info")

    def __init__(self, tag_id: str, type_info: TypeInformation[T] | None = None) -> None:
        if not isinstance(tag_id, str) or not tag_id:
            raise ProgramError(f"an OutputTag's id must be a non-empty string, not {shorten(tag_id)}")
        self.tag_id: str = tag_id
        self.type_info: TypeInformation[T] | None = type_info

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and other.tag_id == self.tag_id

    def __hash__(self) -> int:
        return hash(self.tag_id)

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r})"

    def __reduce__(self) -> Any:
        return make, ("OutputTag", self.tag_id)
