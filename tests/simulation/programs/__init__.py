"""The programs that are simulated, by name."""

from tests.simulation.programs import (
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

__all__ = ["PROGRAMS", "Inputs", "SimulatedProgram", "outcome"]

PROGRAMS: dict[str, SimulatedProgram] = {
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
