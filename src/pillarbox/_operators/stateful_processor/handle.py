"""The handles that ``StatefulProcessor.init`` gets: one declares states on the driver, the other finds them in a task.

A task declares the states that the driver's handle recorded, before it restores a checkpoint; workers cannot parse DDL.
Names of methods and arguments, conditions and texts of errors are Spark's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.types import StructType

from pillarbox._operators.frame.captured import Pickled, load
from pillarbox._operators.stateful_processor.states import (
    ProcessorListState,
    ProcessorMapState,
    ProcessorValueState,
    UnusableState,
)
from pillarbox._operators.stateful_processor.values import struct_codec
from pillarbox._state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.timers import HeapTimers
from pillarbox._state.ttl import StateTtlConfig
from pillarbox._types.type_information import TypeInformation

Schema: TypeAlias = StructType | str
_MODES = {"none": "NoTime", "processingtime": "ProcessingTime", "eventtime": "EventTime"}
_VERBS = {"get_value_state": "initializing value state", "get_list_state": "initializing list state"} | {
    "get_map_state": "initializing map state",
    "register_timer": "register timer",
    "delete_timer": "deleting timer",
    "list_timers": "listing timers",
    "delete_if_exists": "deleting state",
}

_CALLS = {"exists": "checking value state exists", "get": "getting value state", "clear": "clearing value state"}


@dataclass(frozen=True)
class StateVariable:
    """A state that a processor declares.

    Attributes:
        kind: ``value``, ``list`` or ``map``.
        schemas: of the value; of a map, of key and value.
        ttl: its time-to-live in milliseconds, or None.
    """

    kind: str
    schemas: tuple[StructType, ...]
    ttl: int | None


@dataclass
class Declarations:
    """What a processor's ``init`` declares.

    Attributes:
        variables: its states by name.
        deleted: the names that it passes to ``deleteIfExists``.
        parsed: schemas by their DDL.
    """

    variables: dict[str, StateVariable] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    parsed: dict[str, StructType] = field(default_factory=dict)


class _Handle:
    """The part that both handles have."""

    def __init__(self, time_mode: str) -> None:
        self._time_mode = time_mode

    def getValueState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> Any:
        return self._state("value", stateName, (schema,), ttlDurationMs)

    def getListState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> Any:
        return self._state("list", stateName, (schema,), ttlDurationMs)

    def getMapState(
        self, stateName: str, userKeySchema: Schema, valueSchema: Schema, ttlDurationMs: int | None = None
    ) -> Any:
        return self._state("map", stateName, (userKeySchema, valueSchema), ttlDurationMs)

    def _state(self, kind: str, name: str, schemas: tuple[Schema, ...], ttl: int | None) -> Any:
        raise NotImplementedError

    def _check_time_mode(self, operation: str) -> None:
        if self._time_mode == "none":
            raise _error(
                operation,
                "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE",
                f"Failed to perform stateful processor operation={operation} with invalid timeMode=NoTime",
            )


class DriverHandle(_Handle):
    """Records what ``init`` declares. States cannot be used yet, nor timers.

    Args:
        parse: makes a schema of DDL.
    """

    def __init__(self, time_mode: str, parse: Callable[[str], StructType]) -> None:
        super().__init__(time_mode)
        self._parse = parse
        self.declarations: Declarations = Declarations()

    def _state(self, kind: str, name: str, schemas: tuple[Schema, ...], ttl: int | None) -> Any:
        action, variables = f"get_{kind}_state", self.declarations.variables
        ttl = ttl or None
        if name in variables and variables[name].kind == kind:
            raise PySparkRuntimeError(f"Error {_VERBS[action]}: {kind.capitalize()} state {name} already exists")
        if name in variables:
            raise _error(
                action,
                "STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED",
                f"State variable with name {name} has already been defined in the StatefulProcessor.",
            )
        if ttl is not None and self._time_mode != "processingtime":
            raise _error(
                action,
                "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL",
                f"Cannot use TTL for state={name} in timeMode={_MODES[self._time_mode]}, use TimeMode.ProcessingTime()"
                " instead.",
            )
        if ttl is not None and ttl <= 0:
            raise _error(
                action,
                "STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE",
                f"TTL duration must be greater than zero for State store operation=update on state={name}.",
            )
        if name in self.declarations.deleted:
            raise PySparkRuntimeError(
                f"Error {_VERBS[action]}: init() deletes the state {name!r} and declares it afterwards, which would"
                " empty it in each micro-batch: give the new state another name"
            )
        variables[name] = StateVariable(kind, tuple(map(self._parsed, schemas)), ttl)
        for place, schema in enumerate(variables[name].schemas):
            struct_codec(schema, hashable=kind == "map" and place == 0)  # refuses types that cannot be kept
        return UnusableState(lambda method: _invalid_state(f"{name}.{method}", "PRE_INIT"))

    def _parsed(self, schema: Schema) -> StructType:
        if not isinstance(schema, str):
            return schema
        parsed = self.declarations.parsed
        if schema not in parsed:
            try:
                parsed[schema] = self._parse(schema)
            except Exception as error:
                raise PySparkRuntimeError(f"Error parsing string schema: {error}") from error
        return parsed[schema]

    def deleteIfExists(self, stateName: str) -> None:
        self.declarations.deleted.add(stateName)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._refuse_timers("register_timer")

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._refuse_timers("delete_timer")

    def listTimers(self) -> Iterator[int]:
        self._refuse_timers("list_timers")
        return iter(())

    def _refuse_timers(self, operation: str) -> None:
        self._check_time_mode(operation)
        raise _invalid_state(operation, "PRE_INIT")


def declare(processor: Any, handle: DriverHandle) -> None:
    """Call ``init`` of a copy of a processor, as Spark does on the driver when a query starts."""
    copied = load(Pickled(processor).payload)
    copied.init(handle)
    copied.close()


class TaskHandle(_Handle):
    """Gives a processor its states, and the timers of the current key.

    Attributes:
        states: all states by name.
    """

    def __init__(
        self, time_mode: str, declarations: Declarations, backend: KeyedStateBackend, timers: HeapTimers
    ) -> None:
        super().__init__(time_mode)
        self._declarations, self._timers = declarations, timers
        for name in declarations.deleted - declarations.variables.keys():
            backend.delete_if_exists(name)
        self.states: dict[str, Any] = declared_states(declarations, backend)
        self._is_initializing = False

    def initialize(self, init: Callable[[Any], None]) -> None:
        """Call a processor's ``init``: only there it may ask for states."""
        self._is_initializing = True
        init(self)
        self._is_initializing = False

    def _state(self, kind: str, name: str, schemas: tuple[Schema, ...], ttl: int | None) -> Any:
        action = f"get_{kind}_state"
        if not self._is_initializing:
            raise _invalid_state(action, "INITIALIZED")
        declarations = self._declarations
        parsed = tuple([declarations.parsed.get(each) if isinstance(each, str) else each for each in schemas])
        if declarations.variables.get(name) != StateVariable(kind, parsed, ttl or None):  # type: ignore[arg-type]
            raise PySparkRuntimeError(
                f"Error {_VERBS[action]}: init() declares the state {name!r} in another way than on the driver, where"
                " pillarbox has called it first: declare the same states each time"
            )
        if name in declarations.deleted:
            return UnusableState(
                lambda method: PySparkRuntimeError(
                    f"Error {_CALLS.get(method, 'updating value state')}: {kind.capitalize()} state {name} is not"
                    " initialized."
                )
            )
        return self.states[name]

    def deleteIfExists(self, stateName: str) -> None:
        if not self._is_initializing:
            raise _invalid_state("delete_if_exists", "INITIALIZED")

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._check_timers("register_timer")
        self._timers.register(operator.index(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._check_timers("delete_timer")
        self._timers.delete(operator.index(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        self._check_timers("list_timers")
        return iter(self._timers.of_key())

    def _check_timers(self, operation: str) -> None:
        self._check_time_mode(operation)
        if self._is_initializing:
            raise _invalid_state(operation, "CREATED")


def declared_states(declarations: Declarations, backend: KeyedStateBackend) -> dict[str, Any]:
    """Declare states of keys; return them by name, with Spark's methods."""
    return {name: _declared(backend, name, variable) for name, variable in declarations.variables.items()}


def _declared(backend: KeyedStateBackend, name: str, variable: StateVariable) -> Any:
    """Declare a state of keys, with its types; return it with Spark's methods."""
    types = [TypeInformation(schema.simpleString(), schema, names=tuple(schema.names)) for schema in variable.schemas]
    descriptor: Any
    make: Callable[..., Any]
    if variable.kind == "value":
        descriptor, make = ValueStateDescriptor(name, *types), ProcessorValueState
    elif variable.kind == "list":
        descriptor, make = ListStateDescriptor(name, *types), partial(ProcessorListState, name)
    else:
        descriptor, make = MapStateDescriptor(name, *types), ProcessorMapState
    if variable.ttl is not None:
        descriptor.enable_time_to_live(StateTtlConfig(variable.ttl))
    return make(backend.get_state(descriptor), *variable.schemas)


def _invalid_state(operation: str, state: str) -> PySparkRuntimeError:
    return _error(
        operation,
        "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE",
        f"Failed to perform stateful processor operation={operation} with invalid handle state={state}.",
    )


def _error(operation: str, condition: str, text: str) -> PySparkRuntimeError:
    return PySparkRuntimeError(f"Error {_VERBS.get(operation, operation)}: [{condition}] {text} SQLSTATE: 42802")
