"""Converts state that was read with Spark's ``statestore`` source to a savepoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from pillarbox._operators.stateful_processor.handle import Declarations, StateVariable, descriptor_of
from pillarbox._operators.stateful_processor.values import struct_codec
from pillarbox._rows import column_to_list
from pillarbox._state.inspect.view import ViewedRows
from pillarbox._state.keys.key_groups import DEFAULT_MAX_PARALLELISM
from pillarbox._state.keys.map_keys import map_key
from pillarbox._state.savepoint.manifest import OperatorTable
from pillarbox._state.savepoint.new_table import TIMER_SLOTS, new_operator_table
from pillarbox._state.savepoint.table import Table
from pillarbox._state.slots import NEW, STAMPS, STATE
from pillarbox._state.types.plain_types import type_of_state
from pillarbox._types.type_information import Types

#: The columns after ``key`` are a column per state and an array of timer timestamps.
STATE_COLUMN = "state_{}"
TIMERS_COLUMN = "timers"


@dataclass(frozen=True)
class SparkStateTable:
    """Converts Spark's state rows to the rows of a savepoint table.

    For a state with a time-to-live, Spark stores the expiry time, and a savepoint the last access time.

    Attributes:
        operator: the operator's entry in the savepoint's manifest.
        variables: maps names to states, in column order.
    """

    operator: OperatorTable
    variables: dict[str, StateVariable]

    @staticmethod
    def of(uid: str, key: StructType, declarations: Declarations) -> SparkStateTable:
        variables, types = declarations.variables, {}
        states: list[tuple[str, str]] = []
        for name, variable in variables.items():
            slot, declared = f"{STATE}{name}", descriptor_of(name, variable).declared_types
            states.append((slot, variable.kind))
            types[slot] = type_of_state(variable.kind, declared).name
            if variable.ttl is not None:
                states.append((f"{STAMPS}{slot}", variable.kind))
                stamps = (*declared[:1], Types.LONG()) if variable.kind == "map" else (Types.LONG(),)
                types[f"{STAMPS}{slot}"] = type_of_state(variable.kind, stamps).name
        keys = {field.name: field.dataType.simpleString() for field in key}
        layout = [*states, *TIMER_SLOTS]
        return SparkStateTable(new_operator_table(uid, keys, layout, types, DEFAULT_MAX_PARALLELISM), variables)

    def encode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        keys = [tuple(key) if len(key) > 1 else key[0] for key in column_to_list(batch.column("key"))]
        slots: list[list[Any]] = []
        for number, variable in enumerate(self.variables.values()):
            contents = column_to_list(batch.column(STATE_COLUMN.format(number)))
            slots += map(list, zip(*map(_converter(variable), contents)))
        timers = column_to_list(batch.column(TIMERS_COLUMN))
        slots += [[set(timestamps or ()) or None for timestamps in timers], [None] * len(keys)]
        rows = [[NEW, *values] for values in zip(*slots)]
        view = ViewedRows(keys, None, list(self.operator.layout), rows, np.zeros(len(keys)))
        yield from Table(self.operator).encode([view], 0)


def _converter(variable: StateVariable) -> Callable[[Any], tuple[Any, ...]]:
    *map_keys, value = variable.schemas
    encode, ttl = struct_codec(value).encode, variable.ttl

    def value_and_stamp(stored: Any) -> tuple[Any, Any]:
        return (encode(stored), None) if ttl is None else (encode(stored[0]), stored[1] - ttl)

    def convert(content: Any) -> tuple[Any, Any]:
        if content is None:
            return None, None
        if variable.kind == "value":
            return value_and_stamp(content)
        if variable.kind == "list":
            values, stamps = zip(*map(value_and_stamp, content))
            return list(values), list(stamps)
        encode_key = struct_codec(map_keys[0], hashable=True).encode
        entries = {map_key(encode_key(key)): value_and_stamp(stored) for key, stored in content.items()}
        return {key: entry for key, (entry, _) in entries.items()}, {key: at for key, (_, at) in entries.items()}

    if ttl is None:
        return lambda content: convert(content)[:1]
    return convert
