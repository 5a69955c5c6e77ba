"""Converts state that was read with Spark's ``statestore`` source to a savepoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from pillarbox._operators.stateful_processor.handle import HandleDeclarations, StateVariable, descriptor_of
from pillarbox._operators.stateful_processor.value_codec import struct_codec
from pillarbox._rows import column_to_list
from pillarbox._state.keys.key_groups import DEFAULT_MAX_PARALLELISM
from pillarbox._state.keys.map_keys import map_key
from pillarbox._state.savepoint.manifest import OperatorTable
from pillarbox._state.savepoint.new_table import TIMER_SLOTS, encode_rows, new_operator_table
from pillarbox._state.slots import STAMPS, STATE
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
    def of(uid: str, key: StructType, declarations: HandleDeclarations) -> SparkStateTable:
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
            for convert in _conversions(variable):
                slots.append([None if content is None else convert(content) for content in contents])
        timers = column_to_list(batch.column(TIMERS_COLUMN))
        slots += [[set(timestamps or ()) or None for timestamps in timers], [None] * len(keys)]
        return encode_rows(self.operator, keys, slots)


def _conversions(variable: StateVariable) -> list[Callable[[Any], Any]]:
    """Return the conversions from Spark's content of a state to the state's slot, and to its stamps' slot, if any."""
    *map_keys, value = variable.schemas
    encode_keys = [struct_codec(schema, hashable=True).encode for schema in map_keys]
    encode, ttl = struct_codec(value).encode, variable.ttl
    parts: list[Callable[[Any], Any]] = [encode]
    if ttl is not None:
        parts = [lambda stored: encode(stored[0]), lambda stored: stored[1] - ttl]

    def convert(part: Callable[[Any], Any], content: Any) -> Any:
        if variable.kind == "value":
            return part(content)
        if variable.kind == "list":
            return list(map(part, content))
        return {map_key(encode_keys[0](key)): part(stored) for key, stored in content.items()}

    return [partial(convert, part) for part in parts]
