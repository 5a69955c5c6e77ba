"""What the driver remembers of a planned program, of which it cannot know whether a query will ever hold it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pillarbox._graph.description import ProgramDescription
from pillarbox._runtime.spark.rows.buffer_rows import has_narrow_rows

if TYPE_CHECKING:
    from pillarbox._graph import Program

__all__ = ["ProgramFacts"]


@dataclass(frozen=True)
class ProgramFacts:
    """All that the start of a query takes of a program in its plan: none of its functions and DataFrames.

    Attributes:
        description: what is noted of it beside a checkpoint.
        uses_processing_time: whether it has timers of the clock.
        auto_rescale: whether its parallelism is to become the checkpoint's.
        has_narrow_rows: whether no row of its sources can be large.
        begins: the program itself, if it starts from a savepoint: its first epoch is a plan of its own.
    """

    description: ProgramDescription
    uses_processing_time: bool
    auto_rescale: bool
    has_narrow_rows: bool
    begins: Program | None

    @staticmethod
    def of(program: Program) -> ProgramFacts:
        """Return the facts of a program."""
        return ProgramFacts(
            ProgramDescription.of(program),
            program.uses_processing_time,
            program.auto_rescale,
            has_narrow_rows(program),
            None if program.savepoint is None else program,
        )
