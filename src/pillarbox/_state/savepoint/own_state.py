"""What subtasks keep besides the rows of keys, and how it is redistributed: watermarks, carried requests, own states.

Source of the behaviour: Flink's ``RoundRobinOperatorStateRepartitioner`` for list, union list and broadcast state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa

from pillarbox._elements.buffers import channel_code, edge_of_channel, subtask_of_channel
from pillarbox._errors import CheckpointMismatchError, describe
from pillarbox._state.inspect.view import LogView
from pillarbox._state.savepoint.manifest import OperatorTable
from pillarbox._state.slots import ELEMENTS, LIST, UNION
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP
from pillarbox._unpickle import UnpickleGlobalError

#: The columns of the table ``tasks``: a row for each subtask with a log. ``task`` is pickled, as the head has it.
TASKS = pa.schema(
    [
        ("uid", pa.string()),
        ("subtask", pa.int32()),
        ("parallelism", pa.int32()),
        ("watermark", pa.int64()),
        ("task", pa.binary()),
    ]
)


def task_row(view: LogView) -> dict[str, Any]:
    """Return the row of ``tasks`` for the log of a subtask.

    Raises:
        CheckpointMismatchError: what the task keeps cannot be read.
    """
    head = view.head
    gate = view.task_state().get("gate")
    return {
        "uid": head.operator,
        "subtask": head.subtask,
        "parallelism": head.parallelism,
        "watermark": gate["valve"]["watermark"] if gate else None,
        "task": head.task,
    }


def is_drained(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether event time has ended, from the rows of ``tasks``: all that comes later is late."""
    return bool(rows) and all(row["watermark"] == MAX_WATERMARK for row in rows)


def read_task(uid: str, payload: bytes, loads: Callable[[bytes], Any]) -> dict[str, Any]:
    """Return what a subtask keeps, from its row of ``tasks``.

    Raises:
        CheckpointMismatchError: it cannot be read.
    """
    try:
        task: dict[str, Any] = loads(payload)
    except UnpickleGlobalError as error:
        raise CheckpointMismatchError(
            f"operator {uid!r}: the savepoint holds, in what its tasks keep besides the rows of keys, {error.advice}"
        ) from error
    except Exception as error:
        raise CheckpointMismatchError(
            f"operator {uid!r}: what its tasks keep besides the rows of keys cannot be read: {describe(error)}"
        ) from error
    return task


@dataclass
class OwnState:
    """What a subtask keeps besides the rows of keys.

    Attributes:
        task: watermarks (``gate``) and what operators have not finished (``operators``, by uid), as a head has it.
        row: states of the operators themselves, by name of slot.
    """

    task: dict[str, Any] = field(default_factory=dict)
    row: dict[str, Any] = field(default_factory=dict)


def own_states(
    operator: OperatorTable,
    tasks: Iterable[Mapping[str, Any]],
    own_rows: Iterable[Mapping[int, dict[str, Any]]],
    loads: Callable[[bytes], Any],
) -> list[OwnState]:
    """Return what the subtasks of an operator keep besides the rows of keys, by subtask.

    Args:
        tasks: the rows of ``tasks``, of all operators.
        own_rows: the operator's own rows, as ``Table.own_rows`` gives them.
        loads: unpickles what subtasks keep.

    Raises:
        CheckpointMismatchError: it cannot be read, or is of a subtask that the operator does not have.
    """
    states = [OwnState() for _ in range(operator.parallelism)]

    def of(subtask: Any) -> OwnState:
        if not isinstance(subtask, int) or not 0 <= subtask < operator.parallelism:
            raise CheckpointMismatchError(
                f"operator {operator.uid!r}: the savepoint has state of subtask {subtask}, and the operator has"
                f" subtasks 0 to {operator.parallelism - 1}: it is damaged, or was edited"
            )
        return states[subtask]

    for row in tasks:
        if row["uid"] == operator.uid and row["task"]:
            state = of(row["subtask"])
            state.task = read_task(operator.uid, bytes(row["task"]), loads)
    for rows in own_rows:
        for subtask, content in rows.items():
            of(subtask).row = content
    return states


def gate_with_edges(gate: dict[str, Any], edge: Callable[[int], int | None]) -> dict[str, Any]:
    """Return what a gate keeps in a program where its edges have other numbers.

    Args:
        edge: returns the number of an edge in the new program, by that in the former one; None: it is no more, and so
            is what was known of it.
    """

    def channel(name: Hashable) -> Hashable | None:
        if isinstance(name, int):
            number = edge(edge_of_channel(name))
            return None if number is None else channel_code(number, subtask_of_channel(name))
        if isinstance(name, tuple):
            source, number = name[0], edge(name[1])
            return None if number is None else (source, number)
        return name

    numbers = {what: _with_names(gate[what], edge) for what in ("last_active", "last_said")}
    valve = {**gate["valve"], "channels": _with_names(gate["valve"]["channels"], channel)}
    return {**gate, **numbers, "valve": valve}


def _with_names(known: Mapping[Any, Any], name: Callable[[Any], Hashable | None]) -> dict[Any, Any]:
    renamed = ((name(former), value) for former, value in known.items())
    return {new: value for new, value in renamed if new is not None}


def check_watermarks(operator: OperatorTable, states: Sequence[OwnState], parallelism: int) -> None:
    """Check that windows have come equally far in all subtasks, if keys are to change these.

    Panes and sessions do not say how far they have fired: at a lesser watermark they would do so again, or never.

    Raises:
        CheckpointMismatchError: the watermarks differ.
    """
    timers = {name.partition("/")[0] for name, kind in (*operator.layout, *operator.space_layout) if kind == "timers"}
    of_columns = any(part.name == "partials" for part in operator.parts)
    if not of_columns and timers.isdisjoint({"pane-timers", "session-timers"}):
        return
    gates = [state.task["gate"] for state in states if state.task.get("gate")]
    watermarks = sorted({gate["valve"]["watermark"] for gate in gates})
    if len(watermarks) > 1:
        raise CheckpointMismatchError(
            f"operator {operator.uid!r}: its {operator.parallelism} subtasks had reached different watermarks when the"
            f" savepoint was taken ({watermarks[0]} to {watermarks[-1]}), so its windows cannot resume in"
            f" {parallelism}: start with {operator.parallelism} subtasks, take another savepoint after all sources have"
            " had records, and change the number when you start from it"
        )


def redistribute(
    uid: str,
    states: Sequence[OwnState],
    parallelism: int,
    channels: Sequence[Sequence[int]] = (),
    *,
    keys_stay: bool = False,
) -> list[OwnState]:
    """Return what each of the new subtasks has of the former ones' own state.

    Where keys stay in their subtasks, each keeps its watermarks. Otherwise the watermark is the least of all, also for
    each input channel: what was late may be so no more, and nothing is late that was not. List states are shared
    out, union list states and broadcast state go to all.

    Requests that are carried are dealt out in their order, in parts that differ by one at the most; where the number of
    subtasks stays, each keeps its own. Otherwise watermarks between them are left out, as they are one subtask's: each
    part ends with the least of the last ones, after all its requests, which delays event time, and makes nothing late.
    The same holds of idleness, where all had become idle.

    Event time after the inputs of subtasks is kept where the number of subtasks stays. Otherwise it is the least of
    all, too; silence is counted from the last record of any, and subtasks say again whether a stream is idle.

    Args:
        uid: the operator's, for errors.
        states: of the former subtasks, in their order.
        parallelism: the number of the new ones.
        channels: of each input of the new program all channels: where their number has changed, all begin alike.
        keys_stay: whether each subtask has the keys that it had.

    Raises:
        CheckpointMismatchError: an operator keeps something that cannot be dealt out.
    """
    rows = redistribute_operator_state([state.row for state in states], parallelism)
    gates = [state.task["gate"] for state in states if state.task.get("gate")]
    gate = _merged(gates, channels) if gates else None
    owns = [gate] * parallelism
    if keys_stay and len(states) == parallelism:
        owns = [_merged([state.task["gate"]], channels) if state.task.get("gate") else gate for state in states]
    else:
        _check_no_elements(states)
    shares = _shares(uid, [state.task.get("operators") or {} for state in states], parallelism)
    known = [state.task.get("event_time") or {} for state in states]
    times = known if len(states) == parallelism else [_event_time(known)] * parallelism
    tasks = [
        {**({"gate": own} if own else {}), "operators": operators, **({"event_time": time} if time else {})}
        for own, operators, time in zip(owns, shares, times)
    ]
    return [OwnState(task if any(task.values()) else {}, row) for task, row in zip(tasks, rows)]


def _check_no_elements(states: Sequence[OwnState]) -> None:
    """Refuse unfinished records of keyed functions, whose keys would be in other subtasks."""
    for state in states:
        for uid, entries in (state.task.get("operators") or {}).items():
            if isinstance(entries, list) and any(type(entry) is tuple and entry[0] in ELEMENTS for entry in entries):
                raise CheckpointMismatchError(
                    f"operator {uid!r} has unfinished records of an async keyed function, which cannot be dealt out to"
                    f" other subtasks: keep its {len(states)} subtasks and its max parallelism, or finish these"
                    " records: start the former program with pillarbox.start(...) and trigger(availableNow=True), let"
                    " it end, and write another savepoint"
                )


def _event_time(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what new subtasks know of event time after their inputs, from what each of the former ones knew."""
    operators: dict[str, dict[str, Any]] = {}
    meetings: dict[Hashable, dict[str, Any]] = {}
    for uid, every in _of_all([state.get("operators", {}) for state in states]).items():
        since = [known["quiet_since"] for known in every if known.get("quiet_since") is not None]
        operators[uid] = {
            "watermark": min(known["watermark"] for known in every),
            "idle": None,
            "quiet_since": max(since, default=None),
            "silent": False,
        }
    for name, valves in _of_all([state.get("meetings", {}) for state in states]).items():
        meetings[name] = _valve(valves)
    return {"operators": operators, "meetings": meetings} if operators or meetings else {}


def _of_all(states: Sequence[Mapping[Any, Any]]) -> dict[Any, list[Any]]:
    """Return the values by name, as far as all states have one."""
    return {name: [state[name] for state in states] for name in states[0] if all(name in state for state in states)}


def _valve(valves: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    said: dict[Hashable, list[tuple[int, bool, bool]]] = {}
    for valve in valves:
        for name, state in valve["channels"].items():
            said.setdefault(name, []).append(state)
    return {
        "watermark": min(valve["watermark"] for valve in valves),
        "idle": all(valve["idle"] for valve in valves),
        "channels": {name: _channel(every) for name, every in said.items()},
    }


def _merged(gates: Sequence[dict[str, Any]], channels: Sequence[Sequence[int]]) -> dict[str, Any]:
    valve = _valve([gate["valve"] for gate in gates])
    merged = valve["channels"]
    for group in channels:
        edge = edge_of_channel(group[0])
        former = [name for name in merged if isinstance(name, int) and edge_of_channel(name) == edge]
        if former and set(former) != set(group):
            # Keys have gone from subtask to subtask: each of the new ones starts from what holds for all.
            together = _channel([merged.pop(name) for name in former])
            merged.update(dict.fromkeys(group, together))
    return {
        "valve": valve,
        "last_active": _each([gate["last_active"] for gate in gates], max),
        "last_said": _each([gate["last_said"] for gate in gates], min),
    }


def _channel(states: Sequence[tuple[int, bool, bool]]) -> tuple[int, bool, bool]:
    """Return the state of a channel from what several subtasks know of it: watermark, whether idle, whether aligned."""
    idle = all(idle for _, idle, _ in states)
    return min(watermark for watermark, _, _ in states), idle, not idle and any(aligned for _, _, aligned in states)


def _each(every: Sequence[Mapping[Any, int]], choose: Any) -> dict[Any, int]:
    names = dict.fromkeys(chain.from_iterable(every))
    return {name: choose(each[name] for each in every if name in each) for name in names}


def _shares(uid: str, states: Sequence[Mapping[str, Any]], parallelism: int) -> list[dict[str, Any]]:
    if len(states) == parallelism:
        return [dict(state) for state in states]
    shares: list[dict[str, Any]] = [{} for _ in range(parallelism)]
    for name in dict.fromkeys(chain.from_iterable(states)):
        parts = [state.get(name) or [] for state in states]
        if not all(isinstance(part, list) for part in parts):
            raise CheckpointMismatchError(
                f"operator {uid!r}: {name!r} keeps something that cannot be dealt out to another number of subtasks:"
                f" keep it at {len(states)}"
            )
        for share, dealt in zip(shares, _deal_requests(parts, parallelism)):
            if dealt:
                share[name] = dealt
    return shares


def _deal_requests(parts: Sequence[list[Any]], parallelism: int) -> list[list[Any]]:
    requests = [element for part in parts for element in part if element[0] == "request"]
    last = [_last_watermark_and_idleness(part) for part in parts if part]
    events: list[Any] = []
    watermark = min((stamp for stamp, _ in last if stamp is not None), default=None)
    if watermark is not None:
        events.append(("watermark", watermark))
    if len(last) == len(parts) and all(idle for _, idle in last):
        events.append(("idle", True))
    return [share + events for share in _in_order(requests, parallelism)]


def _last_watermark_and_idleness(part: list[Any]) -> tuple[int | None, bool]:
    """Return the last watermark among requests, and whether the stream is idle after them."""
    watermark, idle = None, False
    for what, *content in part:
        if what == "watermark":
            watermark = max(content[0], MIN_TIMESTAMP if watermark is None else watermark)
        elif what == "idle":
            idle = content[0]
    return watermark, idle


def redistribute_operator_state(states: Sequence[Mapping[str, Any]], parallelism: int) -> list[dict[str, Any]]:
    """Return what each of the new subtasks has of the operator's own state.

    The elements of a list state are shared out: in their order, in parts that differ by one element at the most; where
    the number of subtasks stays, each keeps its own. All elements of a union list state go to each subtask. Broadcast
    state is the same in all subtasks: each of the new ones gets a copy.

    Args:
        states: what each of the former subtasks has, by the names of the slots of its row; None, or no such name: it
            has nothing.
        parallelism: the number of the new subtasks.
    """
    new: list[dict[str, Any]] = [{} for _ in range(parallelism)]
    for name in dict.fromkeys(chain.from_iterable(states)):
        parts = [state.get(name) for state in states]
        if name.startswith((LIST, UNION)):
            elements = list(chain.from_iterable(part or () for part in parts))
            shares: list[Any] = [list(elements) for _ in new]
            if name.startswith(LIST):
                shares = [list(part or ()) for part in parts]
                if len(parts) != parallelism:
                    shares = _in_order(elements, parallelism)
        else:
            shares = [parts[number % len(parts)] for number in range(parallelism)]
            shares = [None if share is None else dict(share) for share in shares]
        for state, share in zip(new, shares):
            if share:
                state[name] = share
    return new


def _in_order(elements: list[Any], parallelism: int) -> list[list[Any]]:
    """Return elements in parts that differ by one at the most."""
    ends = [len(elements) * number // parallelism for number in range(parallelism + 1)]
    return [elements[start:end] for start, end in pairwise(ends)]
