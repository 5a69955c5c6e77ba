"""A query's checkpoint as files: the epochs in Spark's logs, and the notes of the programs that it belongs to."""

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
    Comparison,
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


class Checkpoint:
    """A checkpoint location: which epochs there are, which programs it belongs to, and how their subtasks lie in it.

    It is for one start, or one look: what there is, is read once.

    Notes are written and read by Spark, so they can be wherever a checkpoint can. Each start with a changed program
    adds a file, which Spark writes elsewhere and moves to its place: a driver that dies meanwhile leaves what there
    was. A description of a program says from which batch on it holds: one of a program that never committed a batch,
    because it failed, or was refused further on, binds nobody.
    """

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._spark = spark
        self._checkpoint = checkpoint.rstrip("/")
        self._folder = f"{self._checkpoint}/pillarbox"

    def __str__(self) -> str:
        return self._checkpoint

    @cached_property
    def _noted(self) -> LayoutsNote | None:
        """The newest note of the layouts; None: there is none."""
        return max(filter(None, map(read_layouts, self.lines)), default=None, key=itemgetter(0))

    def subtasks(self) -> list[tuple[int, int]] | None:
        """Return the numbers of subtasks and of key groups of each program, as noted; None: nothing was noted."""
        if self.last_committed >= 0 and self._noted is not None:
            return [(subtasks, key_groups) for subtasks, key_groups in self._noted.layouts]
        binding = self.binding()
        if binding is None:
            return None
        return [(program["parallelism"], program["max_parallelism"]) for program in binding["programs"]]

    def layouts(self, compiled: Sequence[Layout], find: Callable[[], Sequence[Layout | None]]) -> list[Layout]:
        """Return how the programs of a query are laid out in the checkpoint; note it where it is not noted.

        Only what is known is noted: a note that was guessed would hold for good.

        Args:
            compiled: the layouts that the programs were compiled with; a new checkpoint gets these.
            find: looks for the layout of each program in the state, for a checkpoint whose note is lost; None for
                a program that has no state there.
        """
        noted, is_known = self._noted, True
        if self.last_committed < 0:
            numbers = [[each.subtasks, each.key_groups] for each in compiled]
        else:
            known = self.subtasks()
            if known is None:
                found = find()
                pairs = [each or own for each, own in zip_longest(found, compiled)]
                known, is_known = [(each.subtasks, each.key_groups) for each in pairs], None not in found
            numbers = [[*each] for each in known]
        if is_known and (noted is None or noted.layouts != numbers):
            self._write(LayoutsNote(1 if noted is None else noted.number + 1, CODES, numbers).to_json())
        return [
            each._replace(codes=CODES) if pair is None else Layout(pair[0], pair[1], CODES)
            for each, pair in zip_longest(compiled, numbers[: len(compiled)])
        ]

    def check(self, programs: Sequence[Program | ProgramDescription], layouts: Sequence[Layout]) -> None:
        """Compare with the programs that the checkpoint belongs to; note what there is now.

        Args:
            layouts: those that the programs are to run with.

        Raises:
            CheckpointMismatchError: it belongs to programs that these cannot take the place of.
        """
        now = describe_programs(programs, layouts)
        binding = self.binding()
        if binding is not None:
            self._compare(binding, now)
        self._note(self._described, now, self.last_committed)

    def follow(self, programs: Sequence[Program | ProgramDescription], layouts: Sequence[Layout]) -> None:
        """Note what there is now, if anything has been noted before; refuse nothing.

        Without this, batches that these programs commit would seem to belong to the earlier programs.
        """
        every = self._described
        if every:
            self._note(every, describe_programs(programs, layouts), self.last_committed)

    @property
    def savepoint(self) -> str | None:
        """The savepoint that the checkpoint was begun from, or is being; None: none."""
        noted = [json_object(line).get("savepoint") for line in self.lines]
        return next((found for found in noted if isinstance(found, str)), None)

    def note_savepoint(self, directory: str) -> None:
        """Note that a new checkpoint begins from a savepoint."""
        self._write(json.dumps({"savepoint": directory}))

    @property
    def is_begun(self) -> bool:
        """Whether a batch was begun, be it committed or not."""
        return bool(self.epochs_begun)

    @property
    def is_new(self) -> bool:
        """Whether no epoch of the query's own was committed; an epoch that takes a savepoint's state is not its own."""
        return self.last_committed < (0 if self.savepoint is None else 1)

    def _compare(self, then: dict[str, Any], now: dict[str, Any]) -> None:
        found = compare(then, now)
        if found.refused:
            changes = "".join(f"\n  - {what}" for what in found.refused)
            raise CheckpointMismatchError(
                f"the checkpoint {self._checkpoint} belongs to another program (as noted in {self._folder}):{changes}\n"
                f"change it back, or start from a new checkpoint{self._from_savepoint(found)}"
            )
        for what in found.doubtful:
            _log.warning("checkpoint %s: %s", self._checkpoint, what)

    def _from_savepoint(self, found: Comparison) -> str:
        """Return how the new checkpoint has the state of this one, if all that was refused goes over a savepoint."""
        if not found.survives_savepoint:
            return ""
        how = f"'pillarbox savepoint {self._checkpoint} DIRECTORY', and env.from_savepoint(DIRECTORY) in the program"
        return f", which has its state by a savepoint: {how}"

    def _note(self, every: list[dict[str, Any]], now: dict[str, Any], committed: int) -> None:
        if every and every[-1]["programs"] == now["programs"]:
            return
        number = every[-1]["number"] + 1 if every else 1
        text = json.dumps({**now, "number": number, "batch": committed + 1}, sort_keys=True)
        self._write(text)

    def _write(self, text: str) -> None:
        session_of(self._spark).folder(self._folder).add_line(text)

    @cached_property
    def _described(self) -> list[dict[str, Any]]:
        """All descriptions, in the order in which they were written."""
        found = [read_description(line) for line in self.lines]
        return sorted((one for one in found if one is not None), key=itemgetter("number"))

    def binding(self, batch: int | None = None) -> dict[str, Any] | None:
        """Return the description of the programs that committed a batch; None: there is none.

        Args:
            batch: None: the last one that was committed.
        """
        last = self.last_committed if batch is None else batch
        noted = [one for one in self._described if one["batch"] <= last]
        return noted[-1] if noted else None

    def programs_at(self, batch: int) -> list[dict[str, Any]] | None:
        """Return the descriptions of the programs that committed a batch; None: there are none."""
        found = self.binding(batch)
        return None if found is None else found["programs"]

    def keep(self) -> None:
        """Keep the description that holds in force when a batch is committed that belongs to no program.

        Otherwise the description of a program that never committed a batch would take effect.
        """
        binding, every = self.binding(), self._described
        if binding is not None and binding is not every[-1]:
            self._note(every, {"format": binding["format"], "programs": binding["programs"]}, self.last_committed)

    # -- the last epoch --

    def is_drained(self, epoch: int | None = None) -> bool:
        """Return whether event time has ended in an epoch, or in one before it; None: the last one committed."""
        if not self._last_epochs:
            return False
        return min(self._last_epochs) <= (self.last_committed if epoch is None else epoch)

    @property
    def last_epoch_begun(self) -> int | None:
        """The number of an epoch that was begun as the query's last one, and not committed; None: there is none."""
        if not self._last_epochs:
            return None
        following = self.last_committed + 1
        return following if following in self._last_epochs and self.unfinished is not None else None

    def note_last_epoch(self) -> int:
        """Note that the epoch that follows is the query's last one, whenever it is run; return its number."""
        number = self.last_committed + 1
        self._write(json.dumps({"last_epoch": number, "note": uuid.uuid4().hex}))
        return number

    def forget_last_epoch(self, number: int | None = None) -> None:
        """Let an epoch be like any other: the following epoch, unless it was begun, or a committed epoch."""
        note = self._last_epochs.get(self.last_committed + 1 if number is None else number)
        if note is not None and (number is not None or self.unfinished is None):
            self._write(json.dumps({"forgotten": note}))

    @cached_property
    def _last_epochs(self) -> dict[int, str]:
        """The epochs that were noted as the last one, each with the mark of its note."""
        noted = [json_object(line) for line in self.lines]
        forgotten = {note["forgotten"] for note in noted if "forgotten" in note}
        return {note["last_epoch"]: note["note"] for note in noted if note.get("note", "") not in {"", *forgotten}}

    # -- partitions --

    @property
    def parallelism(self) -> int | None:
        """In how many of Spark's partitions the state lies, as of the last batch that was committed."""
        return self._last_partitions.get(self.last_committed)

    @property
    def known_parallelism(self) -> int | None:
        """The same, without a request to the store; None: it was not read yet."""
        return self.parallelism if "_last_partitions" in vars(self) else None

    @property
    def unfinished(self) -> int | None:
        """The number of partitions of the batch that was begun, and not committed; None: there is none."""
        return self._last_partitions.get(self.last_committed + 1)

    @property
    def interrupted(self) -> int | None:
        """The number of partitions that the state was to get, where a change of it was interrupted."""
        return None if self.unfinished == self.parallelism else self.unfinished

    @property
    def half_epoch(self) -> int | None:
        """An epoch of the query's that was begun and not committed: the next start runs it again; None: there is none.

        A change of the partitions is none of the query's.
        """
        return None if self.unfinished is None or self.interrupted is not None else self.last_committed + 1

    def newest(self) -> dict[str, Any] | None:
        """Return the newest description, whether its program has committed a batch or not; None: there is none."""
        return self._described[-1] if self._described else None

    def check_interrupted(self, wanted: int | None = None) -> None:
        """Refuse a checkpoint where a change of its partitions was interrupted, unless it was to this number.

        Raises:
            CheckpointMismatchError: it was.
        """
        interrupted = self.interrupted
        if interrupted not in (None, wanted):
            raise CheckpointMismatchError(
                f"checkpoint {self}: a change of its parallelism from {self.parallelism} to {interrupted} was"
                f" interrupted: complete it first, with 'pillarbox rescale {self} --parallelism {interrupted}'"
            )

    def check_state_format(self) -> None:
        """Refuse a checkpoint in which Spark may commit the state of another attempt than the output's.

        Raises:
            CheckpointMismatchError: it is one.
        """
        if self.state_format != "1":
            raise CheckpointMismatchError(
                f"checkpoint {self} has state files of format {self.state_format}, in which Spark may commit the state"
                " of one attempt of a task and the output of another one: write a savepoint of it, with 'pillarbox"
                f" savepoint {self} DIRECTORY', and start a new checkpoint from that, with env.from_savepoint()"
            )

    def check_parallelism(self, wanted: int | None, most: int | None) -> None:
        """Check the parallelism of a program that is about to be started; the log tells if it will have another one.

        Args:
            wanted: the parallelism that the program sets; None: it sets none.
            most: the number of its subtasks; None: nobody knows.

        Raises:
            CheckpointMismatchError: to change it was interrupted.
        """
        self.check_interrupted()
        present = self.parallelism
        if present is None or wanted in (None, present):
            return
        assert wanted is not None
        if most is not None and wanted > most:
            _log.warning(
                "checkpoint %s: its first start fixed the max parallelism at %d, so the query cannot have parallelism"
                " %d, and runs with %d: more than %d takes a savepoint, and a start from it on a new checkpoint",
                *(self, most, wanted, present, most),
            )
        else:
            _log.warning(
                "checkpoint %s: the query runs with parallelism %d, as the checkpoint does, and not with %d: to change"
                " that, stop it, and run 'pillarbox rescale %s --parallelism %d', or call env.set_auto_rescale(True)",
                *(self, present, wanted, self, wanted),
            )

    @cached_property
    def query_id(self) -> str | None:
        """Return the id of the query that the checkpoint belongs to; None: no query was ever started there."""
        for _, line in session_of(self._spark).folder(self._checkpoint).lines(["metadata"]):
            if "id" in (found := json_object(line)):
                return str(found["id"])
        return None

    def started_query(self, wanted: str) -> str:
        """Return the id of the query that was started here.

        Args:
            wanted: what to give instead of a place where none was.

        Raises:
            CheckpointMismatchError: none was.
        """
        if self.query_id is None:
            raise CheckpointMismatchError(
                f"{self} is no checkpoint of a query: give the checkpointLocation of {wanted}"
            )
        return self.query_id

    def offsets(self, batches: Iterable[int]) -> dict[int, OffsetEntry]:
        """Return the entries of Spark's offset log for some batches: empty ones for those that have none."""
        found: dict[int, list[str]] = {batch: [] for batch in batches}
        for name, line in session_of(self._spark).folder(f"{self._checkpoint}/offsets").lines(map(str, found)):
            found[int(name)].append(line)
        return {batch: OffsetEntry(tuple(lines)) for batch, lines in found.items()}

    def partitions(self, batches: Iterable[int]) -> dict[int, int]:
        """Return the number of partitions of the state in some batches: of those that say it."""
        settings = {
            batch: conf
            for batch, entry in self.offsets(batches).items()
            if isinstance(conf := entry.facts.get("conf"), dict)
        }
        return {batch: int(conf[SHUFFLE_PARTITIONS]) for batch, conf in settings.items() if SHUFFLE_PARTITIONS in conf}

    @cached_property
    def _last_partitions(self) -> dict[int, int]:
        """The number of partitions of the last batch that was committed, and of one that was begun then."""
        last = self.last_committed
        return {} if last < 0 else self.partitions((last, last + 1))

    @cached_property
    def lines(self) -> list[str]:
        """The notes of the programs: lines of JSON."""
        return [line for _, line in session_of(self._spark).folder(self._folder).lines()]

    @cached_property
    def last_committed(self) -> int:
        """Return the number of the last micro-batch that was committed; -1 where there is none."""
        return max(self._numbers("commits"), default=-1)

    @property
    def is_interrupted(self) -> bool:
        """Whether a batch was begun, and not committed."""
        return self.last_committed + 1 in self.epochs_begun

    @cached_property
    def epochs_begun(self) -> list[int]:
        """The numbers of the micro-batches in the offset log."""
        return self._numbers("offsets")

    @cached_property
    def state_format(self) -> str:
        """The format of the state files, "1" or "2": as the commit log notes it, or else as their names show."""
        if self.last_committed >= 0:
            lines = session_of(self._spark).folder(f"{self._checkpoint}/commits").lines([str(self.last_committed)])
            return "2" if any(line == "v2" for _, line in lines[:1]) else "1"
        # Only in format 2 a name has the mark of its attempt in it.
        names = session_of(self._spark).folder(f"{self._checkpoint}/state/0/0").names()
        return "2" if any("_" in name for name in names) else "1"

    def _numbers(self, log: str) -> list[int]:
        """Return the numbers of the batches in a log of the checkpoint."""
        return [
            int(name) for name in session_of(self._spark).folder(f"{self._checkpoint}/{log}").names() if name.isdigit()
        ]
