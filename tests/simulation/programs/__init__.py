"""The programs that are simulated, by name."""

from tests.simulation.programs import (
    batch,
    borrowed,
    columnar_joins,
    columns,
    event_time,
    requests,
    state,
    timers,
    two_inputs,
    windows,
)
from tests.simulation.programs.program import Inputs, SimulatedProgram, outcome

__all__ = ["PROGRAMS", "STREAMING", "Inputs", "SimulatedProgram", "outcome"]

STREAMING: dict[str, SimulatedProgram] = {
    **event_time.PROGRAMS,
    **timers.PROGRAMS,
    **state.PROGRAMS,
    **borrowed.PROGRAMS,
    **requests.PROGRAMS,
    **windows.PROGRAMS,
    **columns.PROGRAMS,
    **two_inputs.PROGRAMS,
    **columnar_joins.PROGRAMS,
}
PROGRAMS: dict[str, SimulatedProgram] = {**STREAMING, **batch.in_batch_mode(STREAMING)}
