"""Planted bugs that the simulation must find. Each patches one method."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox._operators.frame.keyed_run import KeyedRun
from pillarbox._operators.timestamps_and_watermarks import TimestampsAndWatermarksOperator
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.namespace_rows import NamespaceRows
from pillarbox._state.heap.timers import HeapTimers
from pillarbox._state.keys.addresses import OPERATOR
from pillarbox._state.log import state_log
from pillarbox._state.log.state_log import StateLog, Sync
from pillarbox._task.network import key_sorter
from pillarbox._task.network.batch_input import BatchInput
from pillarbox._task.network.input_gate import InputGate, _Channel
from pillarbox._task.network.key_sorter import KeySorter
from pillarbox._task.network.sorted_records import SortedPortion
from pillarbox._task.operator_chain import _Merge
from pillarbox._time.epoch_valve import EpochValve


@dataclass(frozen=True)
class PlantedBug:
    """A bug and a program that reveals it.

    Attributes:
        within: the number of seeds that must suffice to reveal it.
        first: the first of these seeds.
    """

    plant: Callable[[pytest.MonkeyPatch], None]
    program: str
    within: int
    first: int = 0


def _stamps_from_the_users_random(patch: pytest.MonkeyPatch) -> None:
    """Attempts have random numbers that functions may seed, so several attempts may look alike."""
    patch.setattr(state_log, "secrets", SimpleNamespace(randbits=random.getrandbits))


def _idleness_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A recreated operator starts as active, although the next valve has received its idle status."""
    before = TimestampsAndWatermarksOperator.restore_event_time

    def restore(operator: TimestampsAndWatermarksOperator, state: dict[str, Any] | None) -> None:
        before(operator, None if state is None else {**state, "idle": False, "silent": False})

    patch.setattr(TimestampsAndWatermarksOperator, "restore_event_time", restore)


def _silence_counts_from_the_start_of_a_task(patch: pytest.MonkeyPatch) -> None:
    before = TimestampsAndWatermarksOperator.restore_event_time

    def restore(operator: TimestampsAndWatermarksOperator, state: dict[str, Any] | None) -> None:
        before(operator, None if state is None or state["idle"] else {**state, "quiet_since": None})

    patch.setattr(TimestampsAndWatermarksOperator, "restore_event_time", restore)


def _streams_that_meet_begin_anew(patch: pytest.MonkeyPatch) -> None:
    """A union within a task forgets its streams' watermarks."""
    before = _Merge.restore
    patch.setattr(_Merge, "restore", lambda meeting, snapshot, **_: before(meeting, None))


def _whether_a_channel_has_caught_up_is_a_race(patch: pytest.MonkeyPatch) -> None:
    """Watermarks take effect when they arrive, even from a channel that was idle when the epoch began."""
    patch.setattr(EpochValve, "begin_epoch", lambda valve: None)


def _removed_keys_live_on(patch: pytest.MonkeyPatch) -> None:
    """The log does not record removed keys, so a restart restores them."""
    before = KeyedStateBackend.take_all_changes

    def take_all_changes(backend: KeyedStateBackend) -> Any:
        changed, _ = before(backend)
        return changed, {}

    patch.setattr(KeyedStateBackend, "take_all_changes", take_all_changes)


def _restored_timers_are_lost(patch: pytest.MonkeyPatch) -> None:
    def load(timers: HeapTimers, keys: list[Any], rows: list[Any]) -> None:
        pass

    patch.setattr(HeapTimers, "load", load)


def _buffers_are_taken_as_they_come(patch: pytest.MonkeyPatch) -> None:
    """The gate does not sort a channel's buffers, as long as none arrives after the barrier."""

    def receive(gate: InputGate, buffer: Any) -> Iterator[Any]:
        channel = gate._channels.setdefault(buffer.channel, _Channel())
        yield from gate._in_turn(buffer.channel, channel, buffer.payload)

    patch.setattr(InputGate, "receive", receive)


def _attempts_in_vain_are_kept(patch: pytest.MonkeyPatch) -> None:
    """A resident task with an uncommitted epoch continues with the state of that epoch."""
    before = StateLog.sync

    def sync(log: StateLog, store: Any) -> Sync:
        result = before(log, store)
        return Sync.IN_STEP if result is Sync.OUT_OF_STEP else result

    patch.setattr(StateLog, "sync", sync)


def _broadcast_state_is_written_once(patch: pytest.MonkeyPatch) -> None:
    """Later changes of broadcast state are lost when the subtask moves to another worker."""
    before = NamespaceRows.touch_row

    def touch_row(spaces: NamespaceRows, row: Any) -> None:
        if row[1] != OPERATOR:
            before(spaces, row)

    patch.setattr(NamespaceRows, "touch_row", touch_row)


def _keys_that_share_a_hash_are_one(patch: pytest.MonkeyPatch) -> None:
    def of_one_hash(sorter: KeySorter, portion: SortedPortion, begins: Any) -> Iterator[KeyedRun]:
        index = int(portion.indexes[0])
        if begins[0]:
            yield from sorter._ended(index)
        (sorter._current,) = key = portion.keys_at([0])
        yield KeyedRun(index, portion.records, key)

    patch.setattr(KeySorter, "_of_one_hash", of_one_hash)


def _sorted_runs_come_one_after_the_other(patch: pytest.MonkeyPatch) -> None:
    def merged(runs: Sequence[Any]) -> Iterator[Any]:
        for run in runs:
            while run.block is not None:
                yield run.take(run.last, inclusive=True)

    patch.setattr(key_sorter, "_merged", merged)


def _nobody_waits_for_the_broadcast_stream(patch: pytest.MonkeyPatch) -> None:
    """Batch mode does not delay the non-broadcast records, so some are processed before broadcast records."""
    before = BatchInput.__init__

    def init(batch: BatchInput, operator: str, edges: Sequence[Any], *, by_key: bool) -> None:
        before(batch, operator, edges, by_key=by_key)
        batch._has_broadcast = False

    patch.setattr(BatchInput, "__init__", init)


PLANTED = {
    "keys that share a hash are one": PlantedBug(_keys_that_share_a_hash_are_one, "many-keys-in-batch-mode", 10),
    "sorted runs come one after the other": PlantedBug(
        _sorted_runs_come_one_after_the_other, "many-keys-in-batch-mode", 20
    ),
    "nobody waits for the broadcast stream": PlantedBug(
        _nobody_waits_for_the_broadcast_stream, "broadcast-first-in-batch-mode", 20
    ),
    "stamps from the user's random numbers": PlantedBug(_stamps_from_the_users_random, "many-keys", 200, 23),
    "idleness is forgotten": PlantedBug(_idleness_is_forgotten, "idle-behind-a-shuffle", 60, 10),
    "silence counts from the start of a task": PlantedBug(
        _silence_counts_from_the_start_of_a_task, "idle-behind-a-shuffle", 60, 10
    ),
    "streams that meet begin anew": PlantedBug(_streams_that_meet_begin_anew, "parts-that-meet", 60),
    "whether a channel has caught up is a race": PlantedBug(
        _whether_a_channel_has_caught_up_is_a_race, "windows-of-idle-subtasks", 60, 143
    ),
    "removed keys live on": PlantedBug(_removed_keys_live_on, "sessions", 60),
    "restored timers are lost": PlantedBug(_restored_timers_are_lost, "windows", 20),
    "buffers are taken as they come": PlantedBug(_buffers_are_taken_as_they_come, "history", 20),
    "broadcast state is written once": PlantedBug(_broadcast_state_is_written_once, "broadcast-without-key", 20),
    "attempts in vain are kept": PlantedBug(_attempts_in_vain_are_kept, "history", 20),
}
