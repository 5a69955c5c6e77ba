"""The epochs in a checkpoint's logs, and pillarbox's notes about the query's programs."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pillarbox._errors import CheckpointMismatchError
from pillarbox._graph.description import (
    DescriptionDifferences,
    LayoutsNote,
    ProgramDescription,
    compare,
    describe_programs,
    json_object,
    read_description,
    read_layouts,
)
from pillarbox._graph.layout import Layout
from pillarbox._graph.program import Program
from pillarbox._graph.targets import CODES
from pillarbox._runtime.spark.checkpoint.offset_entry import OffsetEntry
from pillarbox._runtime.spark.session.session import session_of
from pillarbox._runtime.spark.session.spark_names import SHUFFLE_PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("pillarbox")

_NEXT_WATERMARK = "nextBatchWatermarkMs"


class Checkpoint:
    """A query's checkpoint, with its epochs, programs and layouts (numbers of subtasks).

    Files are cached, so create a new object for each start or inspection.

    A program's description is stored with the number of its first batch, and ignored until that batch is committed.
    """

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._spark = spark
        self._checkpoint = checkpoint.rstrip("/")
        self._folder = f"{self._checkpoint}/pillarbox"

    def __str__(self) -> str:
        return self._checkpoint

    @cached_property
    def _layouts_note(self) -> LayoutsNote | None:
        return max(filter(None, map(read_layouts, self.lines)), default=None, key=itemgetter(0))

    def subtasks(self) -> list[tuple[int, int]] | None:
        """Return each program's (subtasks, key groups) according to the checkpoint's note, or None without a note."""
        if self.last_committed >= 0 and self._layouts_note is not None:
            return [(subtasks, key_groups) for subtasks, key_groups in self._layouts_note.layouts]
        binding = self.binding()
        if binding is None:
            return None
        return [(program["parallelism"], program["max_parallelism"]) for program in binding["programs"]]

    def layouts(self, compiled: Sequence[Layout], find: Callable[[], Sequence[Layout | None]]) -> list[Layout]:
        """Return the layouts of a query's programs in the checkpoint.

        If they are certain, they are also noted in the checkpoint. A note is permanent.

        Args:
            find: searches the state for the layouts if the note is lost. Returns None for a program without state.
        """
        noted, is_known = self._layouts_note, True
        if self.last_committed < 0:
            numbers = [[layout.subtasks, layout.key_groups] for layout in compiled]
        else:
            counts = self.subtasks()
            if counts is None:
                state_layouts = find()
                pairs = [layout or own for layout, own in zip_longest(state_layouts, compiled)]
                counts, is_known = [(layout.subtasks, layout.key_groups) for layout in pairs], None not in state_layouts
            numbers = [[*pair] for pair in counts]
        if is_known and (noted is None or noted.layouts != numbers):
            self._write(LayoutsNote(1 if noted is None else noted.number + 1, CODES, numbers).to_json())
        return [
            layout._replace(codes=CODES) if pair is None else Layout(pair[0], pair[1], CODES)
            for layout, pair in zip_longest(compiled, numbers[: len(compiled)])
        ]

    def check(self, programs: Sequence[Program | ProgramDescription], layouts: Sequence[Layout]) -> None:
        now = describe_programs(programs, layouts)
        binding = self.binding()
        if binding is not None:
            self._compare(binding, now)
        elif self.is_begun and self._descriptions:
            self._compare(self._descriptions[-1], now, is_committed=False)
        self._write_description(self._descriptions, now, self.last_committed)

    def follow(self, programs: Sequence[Program | ProgramDescription], layouts: Sequence[Layout]) -> None:
        """Note a query's programs, unchecked, so that their batches are not attributed to earlier programs."""
        every = self._descriptions
        if every:
            self._write_description(every, describe_programs(programs, layouts), self.last_committed)

    @property
    def savepoint(self) -> str | None:
        noted = [json_object(line).get("savepoint") for line in self.lines]
        return next((directory for directory in noted if isinstance(directory, str)), None)

    def note_savepoint(self, directory: str) -> None:
        self._write(json.dumps({"savepoint": directory}))

    @property
    def is_begun(self) -> bool:
        return bool(self.epochs_begun)

    @property
    def is_new(self) -> bool:
        """Whether the query has committed no epoch. An epoch that restores a savepoint does not count."""
        return self.last_committed < (0 if self.savepoint is None else 1)

    def _compare(self, binding: dict[str, Any], now: dict[str, Any], *, is_committed: bool = True) -> None:
        comparison = compare(binding, now, is_committed=is_committed)
        if comparison.refused:
            changes = "".join(f"\n  - {change}" for change in comparison.refused)
            raise CheckpointMismatchError(
                f"the checkpoint {self._checkpoint} belongs to another program (as recorded in"
                f" {self._folder}):{changes}\nchange the program back, or use a new checkpoint"
                f" directory{self._from_savepoint(comparison)}"
            )
        for change in comparison.doubtful:
            _log.warning("checkpoint %s: %s", self._checkpoint, change)

    def _from_savepoint(self, comparison: DescriptionDifferences) -> str:
        if not comparison.survives_savepoint:
            return ""
        how = (
            f"run 'pillarbox savepoint {self._checkpoint} DIRECTORY', and call env.from_savepoint(DIRECTORY) in the"
            " program"
        )
        return f". To keep the state, {how}"

    def _write_description(self, every: list[dict[str, Any]], now: dict[str, Any], committed: int) -> None:
        if every and every[-1]["programs"] == now["programs"]:
            return
        number = every[-1]["number"] + 1 if every else 1
        text = json.dumps({**now, "number": number, "batch": committed + 1}, sort_keys=True)
        self._write(text)

    def _write(self, text: str) -> None:
        session_of(self._spark).folder(self._folder).add_line(text)

    @cached_property
    def _descriptions(self) -> list[dict[str, Any]]:
        descriptions = [read_description(line) for line in self.lines]
        return sorted(
            (description for description in descriptions if description is not None), key=itemgetter("number")
        )

    def binding(self, batch: int | None = None) -> dict[str, Any] | None:
        """Return the description of a committed batch's programs (by default, the last batch's), or None."""
        last = self.last_committed if batch is None else batch
        committed = [description for description in self._descriptions if description["batch"] <= last]
        return committed[-1] if committed else None

    def programs_at(self, batch: int) -> list[dict[str, Any]] | None:
        binding = self.binding(batch)
        return None if binding is None else binding["programs"]

    def renew_description(self) -> None:
        """Before a rescaling commits a batch, note the current description again if a newer one was never used."""
        binding, every = self.binding(), self._descriptions
        if binding is not None and binding is not every[-1]:
            self._write_description(
                every, {"format": binding["format"], "programs": binding["programs"]}, self.last_committed
            )

    def is_drained(self, epoch: int | None = None) -> bool:
        """Return whether ``epoch`` (default: the last committed one) or an earlier epoch sent the final watermark."""
        if not self._last_epochs:
            return False
        return min(self._last_epochs) <= (self.last_committed if epoch is None else epoch)

    @property
    def last_epoch_begun(self) -> int | None:
        if not self._last_epochs:
            return None
        following = self.last_committed + 1
        return following if following in self._last_epochs and self.unfinished is not None else None

    def note_last_epoch(self) -> int:
        """Note that the next epoch is the query's last, and return its number."""
        number = self.last_committed + 1
        self._write(json.dumps({"last_epoch": number, "note": uuid.uuid4().hex}))
        return number

    def forget_last_epoch(self, number: int | None = None) -> None:
        """Delete the note that epoch ``number`` (default: the next epoch, if it has not begun) is the last."""
        note = self._last_epochs.get(self.last_committed + 1 if number is None else number)
        if note is not None and (number is not None or self.unfinished is None):
            self._write(json.dumps({"forgotten": note}))

    @cached_property
    def _last_epochs(self) -> dict[int, str]:
        noted = [json_object(line) for line in self.lines]
        forgotten = {note["forgotten"] for note in noted if "forgotten" in note}
        return {note["last_epoch"]: note["note"] for note in noted if note.get("note", "") not in {"", *forgotten}}

    @property
    def parallelism(self) -> int | None:
        """The number of state partitions after the last committed batch, or None if no batch is committed."""
        return self._last_partitions.get(self.last_committed)

    @property
    def cached_parallelism(self) -> int | None:
        return self.parallelism if "_last_partitions" in vars(self) else None

    @property
    def unfinished(self) -> int | None:
        """The number of state partitions of the uncommitted batch, or None if there is no such batch."""
        return self._last_partitions.get(self.last_committed + 1)

    @property
    def interrupted(self) -> int | None:
        """The target number of partitions of an interrupted repartitioning, or None."""
        return None if self.unfinished == self.parallelism else self.unfinished

    @property
    def uncommitted_epoch(self) -> int | None:
        """The number of the uncommitted epoch, or None. A repartitioning does not count."""
        return None if self.unfinished is None or self.interrupted is not None else self.last_committed + 1

    def newest(self) -> dict[str, Any] | None:
        """Return the newest description of programs, if any. Its batch need not be committed."""
        return self._descriptions[-1] if self._descriptions else None

    def check_interrupted(self, target: int | None = None) -> None:
        interrupted = self.interrupted
        if interrupted not in (None, target):
            raise CheckpointMismatchError(
                f"checkpoint {self}: a change of its parallelism from {self.parallelism} to {interrupted} was"
                f" interrupted: complete it with 'pillarbox rescale {self} --parallelism {interrupted}'"
            )

    def check_state_format(self) -> None:
        if self.state_format != "1":
            raise CheckpointMismatchError(
                f"checkpoint {self} has state files of format {self.state_format}, with which Spark may commit one task"
                f" attempt's state with another attempt's output: write a savepoint with 'pillarbox savepoint {self}"
                " DIRECTORY', and start from it with env.from_savepoint() and a new checkpoint directory"
            )

    def check_parallelism(self, requested: int | None, most: int | None) -> None:
        """Check a program's parallelism before its start. Warn if the query will run with another."""
        self.check_interrupted()
        present = self.parallelism
        if present is None or requested in (None, present):
            return
        assert requested is not None
        if most is not None and requested > most:
            _log.warning(
                "checkpoint %s: its first start fixed the max parallelism at %d, so the query cannot have parallelism"
                " %d, and runs with %d. For more than %d, write a savepoint, and start from it with a new checkpoint"
                " directory",
                *(self, most, requested, present, most),
            )
        else:
            _log.warning(
                "checkpoint %s: the query runs with the checkpoint's parallelism %d, not with %d. To change it,"
                " stop the query and run 'pillarbox rescale %s --parallelism %d', or call env.set_auto_rescale(True)",
                *(self, present, requested, self, requested),
            )

    @cached_property
    def query_id(self) -> str | None:
        for _, line in session_of(self._spark).folder(self._checkpoint).lines(["metadata"]):
            if "id" in (metadata := json_object(line)):
                return str(metadata["id"])
        return None

    def started_query(self, expected: str) -> str:
        if self.query_id is None:
            raise CheckpointMismatchError(
                f"{self} is not a checkpoint of a query: pass the checkpointLocation of {expected}"
            )
        return self.query_id

    def offsets(self, batches: Iterable[int]) -> dict[int, OffsetEntry]:
        entries: dict[int, list[str]] = {batch: [] for batch in batches}
        for name, line in session_of(self._spark).folder(f"{self._checkpoint}/offsets").lines(map(str, entries)):
            entries[int(name)].append(line)
        return {batch: OffsetEntry(tuple(lines)) for batch, lines in entries.items()}

    def partitions(self, batches: Iterable[int]) -> dict[int, int]:
        settings = {
            batch: conf
            for batch, entry in self.offsets(batches).items()
            if isinstance(conf := entry.facts.get("conf"), dict)
        }
        return {batch: int(conf[SHUFFLE_PARTITIONS]) for batch, conf in settings.items() if SHUFFLE_PARTITIONS in conf}

    @cached_property
    def _last_partitions(self) -> dict[int, int]:
        last = self.last_committed
        return {} if last < 0 else self.partitions((last, last + 1))

    @cached_property
    def lines(self) -> list[str]:
        return [line for _, line in session_of(self._spark).folder(self._folder).lines()]

    @cached_property
    def last_committed(self) -> int:
        """The number of the last committed micro-batch, or -1."""
        return max(self._numbers("commits"), default=-1)

    @property
    def is_interrupted(self) -> bool:
        return self.last_committed + 1 in self.epochs_begun

    @cached_property
    def epochs_begun(self) -> list[int]:
        return self._numbers("offsets")

    def watermark(self, epoch: int) -> int:
        """Return Spark's watermark after a committed epoch (Unix time in ms), or 0 if there is no watermark."""
        lines = session_of(self._spark).folder(f"{self._checkpoint}/commits").lines([str(epoch)])
        return max((json_object(line).get(_NEXT_WATERMARK, 0) for _, line in lines), default=0)

    @cached_property
    def state_format(self) -> str:
        if self.last_committed >= 0:
            lines = session_of(self._spark).folder(f"{self._checkpoint}/commits").lines([str(self.last_committed)])
            return "2" if any(line == "v2" for _, line in lines[:1]) else "1"
        # Names contain attempt ids only in format 2.
        names = session_of(self._spark).folder(f"{self._checkpoint}/state/0/0").names()
        return "2" if any("_" in name for name in names) else "1"

    def _numbers(self, log: str) -> list[int]:
        return [
            int(name) for name in session_of(self._spark).folder(f"{self._checkpoint}/{log}").names() if name.isdigit()
        ]
