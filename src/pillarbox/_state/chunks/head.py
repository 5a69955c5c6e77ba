"""The head of a state log: whose state it is, how far it goes, and what its newest chunk has to be.

It is plain data, rewritten with every epoch, and read with an unpickler that resolves no names at all. The own state
of operators, which may hold values of the user's classes, is in it as bytes.
"""

from __future__ import annotations

import logging
import pickle
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from numbers import Number
from typing import Any, NamedTuple

from pillarbox._errors import CheckpointMismatchError, advice_on_version, describe, place_of_task, shorten
from pillarbox._state.keys.key_note import KeyNote, key_change
from pillarbox._state.keys.state_note import StateNote, state_change
from pillarbox._unpickle import RefusedGlobalError, UnpickleGlobalError, loads_plain

_log = logging.getLogger("pillarbox")

# Of the head and the chunks. Another one is refused.
FORMAT = 2
META = 0
_MAGIC = b"pillarbox"
_VERSIONED = len(_MAGIC) + 2
_CHECKED = _VERSIONED + 4

# The slots of a row: name and kind of each.
Layout = list[tuple[str, str]]


@dataclass(frozen=True)
class LogIdentity:
    """Whose state a log holds; a log of another one is refused.

    Attributes:
        operator: uid of the operator.
        parallelism: the number of subtasks that share the operator's keys.
        max_parallelism: the number of key groups.
        program: uid, vertex number and level of all operators of the program that have state: where a store is found
            depends on these two.
        key: the description of the operator's key.
        codes: by which scheme of codes of subtasks the log was found; None: otherwise.
        depends_on: what the state depends on besides the key.
    """

    operator: str
    subtask: int
    parallelism: int
    max_parallelism: int
    program: tuple[tuple[str, int, int], ...] = ()
    key: KeyNote | None = None
    codes: int | None = None
    depends_on: StateNote = field(default_factory=dict)

    def __str__(self) -> str:
        return f"operator {self.operator!r}, subtask {self.subtask}"


class Mark(NamedTuple):
    """The size and digest that a value in the store must have.

    Attributes:
        size: its length in bytes.
        digest: its CRC-32. The store is trusted (see docs/security.md): this is against accidents.
        epoch: the epoch that wrote it.
    """

    size: int
    digest: int
    epoch: int

    @staticmethod
    def of(payload: bytes, epoch: int) -> Mark:
        """Return the mark of a value that an epoch writes."""
        return Mark(len(payload), zlib.crc32(payload), epoch)

    def fits(self, payload: bytes) -> bool:
        """Return whether a value is as it was written."""
        return len(payload) == self.size and zlib.crc32(payload) == self.digest


@dataclass
class LogHead:
    """The content of the head. The names of the attributes are those in the checkpoint.

    Without the numbers it tells the shape of an operator's state: of what may be written into a log.

    Attributes:
        layouts: what the slots of a row hold, in the chunks from a number on: it changes when a program gets another
            state.
        space_layouts: the same for rows of namespaces.
        codes: by which scheme of codes of subtasks the log is found; 0: otherwise.
        version: the number of epochs in the log.
        stamps: number and random stamp of the last epoch, in a list.
        first: the number of the oldest chunk.
        following: the number of the next chunk.
        entry: the number of the next entry.
        entries: how many there are in the log.
        cleaned: how many of them, from the oldest on, cleaning has looked at.
        newest: what the newest chunk has to be; None where there is none.
        large: how many large rows have been written: they have the numbers -1, -2, ...
        task: the task's own state besides the rows, pickled.
        types: the declared types of states, by name of slot, where the operator's are all plain.
        former: the slots of states that the program says it has renamed or deleted, by name: the name that each has
            now, or "" where it is deleted.
        depends_on: what the state depends on besides the key.
        without_timers: the slots of keys' timers that no row has any timer in.
        clock: what the task's clock showed in the last epoch, as a clock log has it.
    """

    operator: str
    parallelism: int
    max_parallelism: int
    layouts: list[tuple[int, Layout]]
    version: int
    subtask: int = 0
    stamps: list[tuple[int, int]] = field(default_factory=list)
    first: int = META + 1
    following: int = META + 1
    entry: int = 0
    entries: int = 0
    program: tuple[tuple[str, int, int], ...] = ()
    cleaned: int = 0
    key: KeyNote | None = None
    newest: Mark | None = None
    large: int = 0
    task: bytes = field(default=b"", repr=False)
    space_layouts: list[tuple[int, Layout]] = field(default_factory=list)
    codes: int = 0
    types: dict[str, str] = field(default_factory=dict)
    former: dict[str, str] = field(default_factory=dict)
    depends_on: StateNote = field(default_factory=dict)
    without_timers: list[str] = field(default_factory=list)
    clock: bytes = field(default=b"", repr=False)

    def slots(self) -> Iterator[tuple[str, str, str]]:
        """Return the slots of all layouts, each once: what leads its name in ``types``, its name, and its kind."""
        for lead, layouts in (("", self.layouts), ("space/", self.space_layouts)):
            for name, kind in dict.fromkeys(tuple(slot) for _, layout in layouts for slot in layout):
                yield lead, name, kind


# Fields that are written only if they say something.
_OPTIONAL = frozenset({"types", "codes", "space_layouts", "former", "depends_on", "without_timers", "clock"})
_FIELDS = frozenset(each.name for each in fields(LogHead))
_NEEDED = _FIELDS - _OPTIONAL


def write_head(head: LogHead) -> bytes:
    """Return the head as it stands in the store."""
    content = {name: getattr(head, name) for name in sorted(_FIELDS)}
    for name in _OPTIONAL:
        if not content[name]:
            del content[name]
    content["newest"] = None if head.newest is None else tuple(head.newest)
    body = pickle.dumps(content, protocol=5)
    return _MAGIC + FORMAT.to_bytes(2, "little") + zlib.crc32(body).to_bytes(4, "little") + body


def read_head(payload: bytes, identity: LogIdentity) -> LogHead:
    """Return the head of the log of ``identity``.

    Raises:
        CheckpointMismatchError: it is another's, of another format, or not as it was written.
    """
    head = open_head(payload, identity)
    _check_identity(head, identity)
    return head


def open_head(payload: bytes, identity: LogIdentity) -> LogHead:
    """Return the head of any log.

    Args:
        identity: for people: what is known of it before it is read.

    Raises:
        CheckpointMismatchError: it is of another format, or not as it was written.
    """
    if not payload.startswith(_MAGIC[: len(payload)]):
        raise CheckpointMismatchError(
            f"{identity}: the state at hand was not written by pillarbox: it is another operator's, or the checkpoint"
            " is damaged; start from an older copy of it, or from a new one"
        )
    if len(payload) < _CHECKED:
        raise damaged(identity, "the head of the state", f"only {len(payload)} bytes are left of it")
    written = int.from_bytes(payload[len(_MAGIC) : _VERSIONED], "little")
    if written != FORMAT:
        raise CheckpointMismatchError(
            f"{identity}: the checkpoint has format {written}, this version of pillarbox reads format {FORMAT}:"
            f" {advice_on_version(written, FORMAT)}, or start from a new checkpoint"
        )
    body = payload[_CHECKED:]
    if zlib.crc32(body) != int.from_bytes(payload[_VERSIONED:_CHECKED], "little"):
        raise damaged(identity, "the head of the state", "its digest does not fit")
    try:
        content: dict[str, Any] = dict(loads_plain(body))
        if content.get("newest") is not None:
            content["newest"] = Mark(*content["newest"])
    except Exception as error:
        raise damaged(identity, "the head of the state", describe(error)) from error
    unknown = sorted(content.keys() - _FIELDS)
    if unknown:
        raise newer(identity, unknown[0])
    missing = sorted(_NEEDED - content.keys())
    if missing:
        raise damaged(identity, "the head of the state", f"it has no {missing[0]!r}")
    head = LogHead(**content)
    if not _has_numbers(head):
        raise damaged(identity, "the head of the state", "its numbers of chunks and entries are none of a log")
    return head


def _has_numbers(head: LogHead) -> bool:
    """Return whether the numbers of a head fit together."""
    numbers = head.version, head.first, head.following, head.entry, head.entries, head.cleaned, head.large
    return (
        set(map(type, numbers)) == {int}
        and META < head.first <= head.following
        and 0 <= head.cleaned <= head.entries <= head.entry
        and min(numbers) >= 0
        and bool(head.stamps)
    )


def damaged(identity: LogIdentity, what: str, why: str) -> CheckpointMismatchError:
    """Return the error that says that something in the store is not as it was written."""
    return CheckpointMismatchError(
        f"{identity}: {what} is not as it was written ({why}): the checkpoint is damaged; start from an older copy of"
        " it, or from a new one"
    )


def newer(identity: LogIdentity, what: str) -> CheckpointMismatchError:
    """Return the error that says that the log has a kind of records that came with a later version."""
    return CheckpointMismatchError(
        f"{identity}: the checkpoint holds {what!r}, which this version of pillarbox does not know: update pillarbox,"
        " or start from a new checkpoint"
    )


def refused(identity: LogIdentity, what: str, error: RefusedGlobalError) -> CheckpointMismatchError:
    """Return the error that says that a value is of no type that the program declares."""
    module, name = error.args
    return CheckpointMismatchError(
        f"{identity}: the checkpoint holds, in {what}, {module}.{name}, which is none of the types that the program"
        " declares; nothing of it was run. If it is a class that has moved, say"
        f" env.add_class_alias('{module}:{name}', ...); if the program wrote it when it declared other types, declare"
        " these, or none for that state; else somebody else has written it: start from an older copy, or from a new"
        " checkpoint"
    )


def cannot_become(identity: LogIdentity, what: str, why: str) -> CheckpointMismatchError:
    """Return the error that says that values cannot become what the program declares now."""
    return CheckpointMismatchError(
        f"{identity}: {what} cannot resume from what the checkpoint holds: {why}; change it back, or give the state"
        " another name and delete this one with runtime_context.delete_if_exists(), or start from a new checkpoint"
    )


def unreadable(identity: LogIdentity, what: str, error: UnpickleGlobalError) -> CheckpointMismatchError:
    """Return the error that says that the class of a value is missing."""
    return CheckpointMismatchError(
        f"{identity}: the checkpoint holds, in {what}, {error.advice}; or start from a new checkpoint"
    )


def _check_identity(head: LogHead, mine: LogIdentity) -> None:
    if head.operator != mine.operator:
        raise CheckpointMismatchError(
            f"the checkpoint holds state of operator {head.operator!r} where the program has"
            f" {mine.operator!r}: set the operator's uid() to the one in the checkpoint, or start from a new one"
        )
    if head.parallelism != mine.parallelism:
        raise CheckpointMismatchError(
            f"operator {mine.operator!r}: the checkpoint was written with {head.parallelism} subtasks, the program runs"
            f" with {mine.parallelism}: leave env.set_max_parallelism() out (of a streaming query), or call"
            f" set_parallelism({head.parallelism}) as before, or start from a new checkpoint"
        )
    if head.max_parallelism != mine.max_parallelism:
        raise CheckpointMismatchError(
            f"operator {mine.operator!r}: the checkpoint was written with {head.max_parallelism} key groups, the"
            f" program runs with {mine.max_parallelism}: leave env.set_max_parallelism() out, or start from a new"
            " checkpoint"
        )
    if head.subtask != mine.subtask:
        raise CheckpointMismatchError(
            f"operator {mine.operator!r}: the checkpoint holds state of subtask {head.subtask} in the place of subtask"
            f" {mine.subtask}: it is damaged; start from an older copy of it, or from a new one"
        )
    if mine.codes is not None and head.codes != mine.codes:
        raise CheckpointMismatchError(
            f"{mine}: the checkpoint finds its subtasks by scheme {head.codes} of codes, this version of pillarbox by"
            f" scheme {mine.codes}: {advice_on_version(head.codes, mine.codes)}, or start from a new checkpoint"
        )
    places = {uid: place for uid, *place in mine.program}
    missing = sorted(uid for uid, *_ in head.program if uid not in places)
    if missing:
        raise CheckpointMismatchError(
            f"the checkpoint holds state of {', '.join(map(repr, missing))}, which the program does not have: run"
            " the program that wrote it, set uid() of the operators to those in the checkpoint, or start from a new"
            " checkpoint"
        )
    moved = sorted(uid for uid, *place in head.program if places[uid] != place)
    if moved:
        # Their state would not be found: they would start from scratch, without a message.
        raise CheckpointMismatchError(
            f"the checkpoint holds state of {', '.join(map(repr, moved))}, which the program has in another place:"
            " operators with state were added before it; run the program that wrote it, add operators after the"
            " others, or start from a new checkpoint"
        )


def check_key(head: LogHead, mine: LogIdentity) -> None:
    """Refuse a key that is surely another one; of one that may be, the worker's log tells."""
    _check_change(
        key_change(head.key, mine.key),
        mine,
        ": old and new keys would mix in one state; key by what the checkpoint was written with, or start from a new"
        " one",
        ": if it gives other keys, they mix with those in the checkpoint",
    )


def check_dependence(head: LogHead, mine: LogIdentity) -> None:
    """Refuse state that surely depends on something else; of such that may, the worker's log tells."""
    _check_change(
        state_change(head.depends_on, mine.depends_on),
        mine,
        ", so what has begun would be lost or mixed: change it back, give the operator another uid() and start from a"
        " savepoint with allow_non_restored_state=True, or start from a new checkpoint",
    )


def _check_change(change: tuple[bool, str] | None, mine: LogIdentity, refusal: str, doubt: str = "") -> None:
    if change is None:
        return
    surely, what = change
    if surely:
        raise CheckpointMismatchError(f"operator {mine.operator!r}: {what}{refusal}")
    if mine.subtask == 0:  # (It is the same for all.)
        _log.warning("%s%s %s", what, doubt, place_of_task(mine.operator))


def check_classes_of_keys(keys: Iterable[Any], classes: tuple[type, ...], mine: LogIdentity) -> None:
    """Refuse keys of other classes than the checkpoint's keys."""
    for key in _of_other_classes(keys, classes):
        raise CheckpointMismatchError(
            f"operator {mine.operator!r}: the key {shorten(key)} ({type(key).__name__}) is none of the type of"
            f" those in the checkpoint ({_format_classes(classes)}): old and new keys would mix in one state;"
            " let the key function return such keys, or start from a new checkpoint"
        )


def check_loaded_keys(keys: Iterable[Any], classes: tuple[type, ...], identity: LogIdentity) -> None:
    """Refuse a checkpoint with keys of other classes than the program declares."""
    equal = (*classes, Number) if int in classes else classes  # NumPy's numbers are equal to Python's
    for key in _of_other_classes(keys, equal):
        raise CheckpointMismatchError(
            f"operator {identity.operator!r}: the checkpoint contains the key {shorten(key)} ({type(key).__name__}),"
            f" but the program declares keys of another type ({_format_classes(classes)}), which would never find its"
            " state: declare the type of the checkpoint's keys, or start from a new checkpoint"
        )


def _of_other_classes(keys: Iterable[Any], classes: tuple[type, ...]) -> Iterator[Any]:
    return (key for key in keys if not isinstance(key, (*classes, type(None))))


def _format_classes(classes: tuple[type, ...]) -> str:
    return ", ".join(kind.__name__ for kind in classes)
