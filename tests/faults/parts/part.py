"""A part of ``make chaos`` programs: an operator that runs next to ``Ledger`` in ``job.py``, and a model of its rows.

The table of operators (``tests/operators_table``) lists all parts.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from pillarbox import DataStream, OutputTag
from tests.faults.programs.job import Event, Faults, Out, Row

__all__ = ["BEGINNING", "BOUNDS", "Joined", "Model", "OutputRow", "Part", "streams_of"]

BEGINNING = -(2**63)  # where event time begins

# Milliseconds, with every sign. Records are up to 15 seconds behind event time, so some are late. With a negative upper
# bound, a row may be past all its partners on arrival, and event time need not advance in that epoch.
BOUNDS = ((-2_000, 3_000), (-12_000, -5_000), (4_000, 9_000), (-6_000, 0), (0, 5_000), (0, 0))


class Joined(NamedTuple):
    """The bounds and the kind of a join.

    Attributes:
        bounds: one of `BOUNDS`.
        how: kind of a columnar join.
    """

    bounds: tuple[int, int] = BOUNDS[0]
    how: Literal["inner", "left"] = "left"


def mixed(so_far: int, number: int) -> int:
    return (31 * so_far + number) % 1_000_003


class OutputRow(NamedTuple):
    """An output row of an operator.

    Attributes:
        state: the key's state in this operator, as JSON.
    """

    key: int
    ts: int
    state: Any


class Model:
    """A model of an operator: the rows that it emits for events and for advances of event time.

    Attributes:
        watermark: current event time.
        rows: output since the last call of ``taken``.
        points: fault point -> events since the last call of ``taken``.
    """

    def __init__(self) -> None:
        self.name = ""
        self.watermark = BEGINNING
        self.rows: list[Row] = []
        self.points: defaultdict[str, list[Any]] = defaultdict(list)

    def record(self, event: Event) -> None: ...

    def end_of_input(self) -> None: ...

    def advance(self, watermark: int) -> None:
        self.watermark = watermark

    def say(self, key: int, ts: int, state: Any, side: str | None = None) -> None:
        self.rows.append((_name(self.name, side), key, ts, json.dumps(state)))

    def taken(self) -> tuple[list[Row], dict[str, list[Any]]]:
        result = self.rows, dict(self.points)
        self.rows, self.points = [], defaultdict(list)
        return result


@dataclass(frozen=True)
class Part:
    """An operator of the program that ``make chaos`` runs, with a model of its rows.

    Attributes:
        name: the operator's name and uid, and the name of its rows.
        stream: creates the operator from the stream of events and a run's faults. Returns the operator's stream and, if
            that differs, the stream with its side outputs.
        model: creates the model of the part's rows.
        row: converts a result to a row, or None if results are rows.
        sides: like ``row``, for the side outputs.
        has_state: whether the operator has state in a checkpoint.
        of: for a join, creates the part with a different kind of join.
    """

    name: str
    stream: Callable[[DataStream[Any], Faults], DataStream[Any] | tuple[DataStream[Any], DataStream[Any]]]
    model: Callable[[], Model]
    row: Callable[[Any], OutputRow] | None = None
    sides: Mapping[OutputTag[Any], Callable[[Any], OutputRow] | None] = field(default_factory=dict)
    has_state: bool = True
    of: Callable[[Joined], Part] | None = None

    @property
    def rows(self) -> list[str]:
        return [self.name, *(_name(self.name, tag.tag_id) for tag in self.sides)]

    def streams(self, events: DataStream[Any], faults: Any) -> list[DataStream[Any]]:
        streams = self.stream(events, faults)
        main, with_sides = streams if isinstance(streams, tuple) else (streams, streams)
        outputs = [(main.uid(self.name).name(self.name), self.row)]
        outputs += [(with_sides.get_side_output(tag), row) for tag, row in self.sides.items()]
        return [stream.map(partial(_out, name, row)) for name, (stream, row) in zip(self.rows, outputs)]

    def new_model(self) -> Model:
        model = self.model()
        model.name = self.name
        return model


def streams_of(parts: Sequence[Part]) -> Callable[[DataStream[Any], Any], list[DataStream[Any]]]:
    return lambda events, faults: [stream for part in parts for stream in part.streams(events, faults)]


def rows_of(models: Iterable[Model], points: defaultdict[str, list[Any]]) -> list[Row]:
    rows = []
    for model in models:
        of_model, result = model.taken()
        rows += of_model
        for point, passed in result.items():
            points[point] += passed
    return rows


def _name(part: str, side: str | None) -> str:
    return part if side is None else f"{part}: {side}"


def _out(name: str, row: Callable[[Any], OutputRow] | None, result: Any) -> Out:
    output = result if row is None else row(result)
    return Out(name, output.key, output.ts, json.dumps(output.state), os.getpid(), 0)
