"""The handle that ``StatefulProcessor.init`` receives.

Tasks use the driver's recorded declarations, because workers cannot parse DDL. Method names, arguments, conditions and
error messages are as in Spark.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.types import StructType

from pillarbox._operators.frame.captured import CapturedObject, load
from pillarbox._operators.stateful_processor.states import (
    ProcessorListState,
    ProcessorMapState,
    ProcessorValueState,
    UnusableState,
)
from pillarbox._operators.stateful_processor.value_codec import struct_codec
from pillarbox._state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.timers import HeapTimers
from pillarbox._state.state_descriptor import StateDescriptor
from pillarbox._state.ttl import StateTtlConfig
from pillarbox._types.type_information import TypeInformation

Schema: TypeAlias = StructType | str
SPARK_MODES = {"none": "NoTime", "processingtime": "ProcessingTime", "eventtime": "EventTime"}
_ACTIONS = {
    "get_value_state": "initializing value state",
    "get_list_state": "initializing list state",
    "get_map_state": "initializing map state",
    "register_timer": "register timer",
    "delete_timer": "deleting timer",
    "list_timers": "listing timers",
    "delete_if_exists": "deleting state",
    "exists": "checking value state exists",
    "get": "getting value state",
    "clear": "clearing value state",
}
# The descriptor of pillarbox's state, and Spark's interface to it.
_KINDS: dict[str, tuple[Callable[..., StateDescriptor], Callable[..., Any]]] = {
    "value": (ValueStateDescriptor, ProcessorValueState),
    "list": (ListStateDescriptor, ProcessorListState),
    "map": (MapStateDescriptor, ProcessorMapState),
}
_CONDITIONS = {
    "CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE": (
        "Failed to perform stateful processor operation={operation} with invalid handle state={phase}."
    ),
    "CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE": (
        "Failed to perform stateful processor operation={operation} with invalid timeMode={mode}"
    ),
    "DUPLICATE_STATE_VARIABLE_DEFINED": (
        "State variable with name {name} has already been defined in the StatefulProcessor."
    ),
    "INCORRECT_TIME_MODE_TO_ASSIGN_TTL": (
        "Cannot use TTL for state={name} in timeMode={mode}, use TimeMode.ProcessingTime() instead."
    ),
    "TTL_DURATION_MUST_BE_POSITIVE": (
        "TTL duration must be greater than zero for State store operation=update on state={name}."
    ),
}


@dataclass(frozen=True)
class StateVariable:
    """A state that a processor declares.

    Attributes:
        declared: the schemas as ``init`` passed them. Workers cannot parse them.
    """

    kind: str
    schemas: tuple[StructType, ...]
    ttl: int | None
    declared: tuple[Schema, ...] = ()


@dataclass
class HandleDeclarations:
    """The states that a processor's ``init`` declares."""

    variables: dict[str, StateVariable] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)


class _Handle:
    """Base class of both handles. ``phase`` is Spark's name of the handle's state."""

    _timers: HeapTimers

    def __init__(self, time_mode: str, phase: str) -> None:
        self._time_mode, self._phase = time_mode, phase

    def getValueState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> Any:
        return self._state("value", stateName, (schema,), ttlDurationMs or None)

    def getListState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> Any:
        return self._state("list", stateName, (schema,), ttlDurationMs or None)

    def getMapState(
        self, stateName: str, userKeySchema: Schema, valueSchema: Schema, ttlDurationMs: int | None = None
    ) -> Any:
        return self._state("map", stateName, (userKeySchema, valueSchema), ttlDurationMs or None)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._checked_timers("register_timer").register(operator.index(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._checked_timers("delete_timer").delete(operator.index(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        return iter(self._checked_timers("list_timers").of_key())

    def _checked_timers(self, operation: str) -> HeapTimers:
        if self._time_mode == "none":
            raise self._error(operation, "CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE")
        if self._phase != "INITIALIZED":
            raise self._error(operation, "CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE")
        return self._timers

    def _state(self, kind: str, name: str, schemas: tuple[Schema, ...], ttl: int | None) -> Any:
        raise NotImplementedError

    def _error(self, operation: str, condition: str, name: str = "") -> PySparkRuntimeError:
        text = _CONDITIONS[condition].format(
            operation=operation, phase=self._phase, mode=SPARK_MODES[self._time_mode], name=name
        )
        action = _ACTIONS.get(operation, operation)
        return PySparkRuntimeError(f"Error {action}: [STATEFUL_PROCESSOR_{condition}] {text} SQLSTATE: 42802")


class DriverProcessorHandle(_Handle):
    """Records the states that ``init`` declares. Raises if ``init`` uses states or timers."""

    def __init__(self, time_mode: str, parse: Callable[[str], StructType]) -> None:
        super().__init__(time_mode, "PRE_INIT")
        self._parse = parse
        self.declarations: HandleDeclarations = HandleDeclarations()

    def deleteIfExists(self, stateName: str) -> None:
        self.declarations.variables.pop(stateName, None)
        self.declarations.deleted.add(stateName)

    def _state(self, kind: str, name: str, schemas: tuple[Schema, ...], ttl: int | None) -> Any:
        operation, variables = f"get_{kind}_state", self.declarations.variables
        action = _ACTIONS[operation]
        if name in variables and variables[name].kind == kind:
            raise PySparkRuntimeError(f"Error {action}: {kind.capitalize()} state {name} already exists")
        if name in variables:
            raise self._error(operation, "DUPLICATE_STATE_VARIABLE_DEFINED", name)
        if ttl is not None and self._time_mode != "processingtime":
            raise self._error(operation, "INCORRECT_TIME_MODE_TO_ASSIGN_TTL", name)
        if ttl is not None and ttl <= 0:
            raise self._error(operation, "TTL_DURATION_MUST_BE_POSITIVE", name)
        if name in self.declarations.deleted:
            raise PySparkRuntimeError(
                f"Error {action}: init() deletes the state {name!r} and declares it again, which would empty it in"
                " each micro-batch: rename the new state"
            )
        variables[name] = StateVariable(kind, tuple(map(self._parsed, schemas)), ttl, schemas)
        for position, schema in enumerate(variables[name].schemas):
            struct_codec(schema, hashable=kind == "map" and position == 0)
        return UnusableState(
            lambda method: self._error(f"{name}.{method}", "CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE")
        )

    def _parsed(self, schema: Schema) -> StructType:
        try:
            return self._parse(schema) if isinstance(schema, str) else schema
        except Exception as error:
            raise PySparkRuntimeError(f"Error parsing string schema: {error}") from error


def declare(processor: Any, time_mode: str, parse: Callable[[str], StructType]) -> HandleDeclarations:
    """Return the declarations of a processor. Calls ``init`` on a copy, as Spark's driver does when a query starts."""
    handle = DriverProcessorHandle(time_mode, parse)
    copied = load(CapturedObject(processor).payload)
    copied.init(handle)
    copied.close()
    return handle.declarations


class TaskProcessorHandle(_Handle):
    """Gives a processor access to its states and the current key's timers."""

    def __init__(
        self, time_mode: str, declarations: HandleDeclarations, backend: KeyedStateBackend, timers: HeapTimers
    ) -> None:
        super().__init__(time_mode, "INITIALIZED")
        self._declarations, self._timers = declarations, timers
        for name in declarations.deleted:
            backend.delete_if_exists(name)
        self.states: dict[str, Any] = {
            name: _KINDS[variable.kind][1](name, backend.get_state(descriptor_of(name, variable)), *variable.schemas)
            for name, variable in declarations.variables.items()
        }

    def initialize(self, init: Callable[[Any], None]) -> None:
        self._phase = "CREATED"
        init(self)
        self._phase = "INITIALIZED"

    def deleteIfExists(self, stateName: str) -> None:
        self._check_phase("delete_if_exists")

    def _check_phase(self, operation: str) -> None:
        if self._phase != "CREATED":
            raise self._error(operation, "CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE")

    def _state(self, kind: str, name: str, schemas: tuple[Schema, ...], ttl: int | None) -> Any:
        self._check_phase(f"get_{kind}_state")
        if name in self._declarations.deleted:
            gone = f"{kind.capitalize()} state {name} is not initialized."
            return UnusableState(
                lambda method: PySparkRuntimeError(f"Error {_ACTIONS.get(method, 'updating value state')}: {gone}")
            )
        variable = self._declarations.variables.get(name)
        if variable is None or (variable.kind, variable.declared, variable.ttl) != (kind, schemas, ttl):
            raise PySparkRuntimeError(
                f"init() declares the state {name!r} differently than on the driver, where pillarbox called it"
                " first: declare the same states each time"
            )
        return self.states[name]


def descriptor_of(name: str, variable: StateVariable) -> StateDescriptor:
    types = [TypeInformation(schema.simpleString(), schema, names=tuple(schema.names)) for schema in variable.schemas]
    descriptor = _KINDS[variable.kind][0](name, *types)
    if variable.ttl is not None:
        descriptor.enable_time_to_live(StateTtlConfig(variable.ttl))
    return descriptor
