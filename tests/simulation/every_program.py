"""All simulated programs by name, from this folder and from the operator table."""

from __future__ import annotations

from tests.operators_table.table import simulated
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
    wild,
    windows,
)
from tests.simulation.programs.program import SimulatedProgram

__all__ = ["PROGRAMS", "STREAMING"]

_MODULES = (event_time, timers, state, borrowed, requests, windows, columns, two_inputs, columnar_joins, wild)

_WRITTEN: dict[str, SimulatedProgram] = {
    **{name: program for module in _MODULES for name, program in module.PROGRAMS.items()},
    **simulated(),
}
STREAMING: dict[str, SimulatedProgram] = {**_WRITTEN, **wild.in_the_wild(_WRITTEN)}
PROGRAMS: dict[str, SimulatedProgram] = {**STREAMING, **batch.in_batch_mode(STREAMING)}
