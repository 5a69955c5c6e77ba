"""The manifest of a savepoint: of which epoch it is, whose state, by which columns, and what each file has to be.

It is written after all else, as one JSON object: a directory without it is no savepoint. All in it is plain data.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import pyarrow as pa

from pillarbox._errors import CheckpointMismatchError, advice_on_version, describe, shorten
from pillarbox._state.chunks.head import Layout, LogHead
from pillarbox._state.keys.key_note import KeyNote, declared_key
from pillarbox._state.keys.state_note import StateNote
from pillarbox._state.savepoint.column_types import is_typed
from pillarbox._state.slots import state_name
from pillarbox._types.scalars import scalar_of_spark

# Of savepoints. Another one is refused.
FORMAT = 1

#: The columns that every table may have besides the columns of states.
RESERVED = ("key_group", "subtask", "key", "namespace", "stream", "matched", "timers", "exact")

# The slots of operators by columns: by these they are known.
_PARTIALS = {("state/partials", "map"), ("window-timers/event", "timers"), ("window-timers/processing", "timers")}
_JOINED = {("state/rows", "value")}
_BUFFERS = {("buffers/event", "timers"), ("buffers/processing", "timers")}


@dataclass(frozen=True)
class FileDigest:
    """The size of a file in bytes, and its SHA-256 as hexadecimal text."""

    length: int
    sha256: str


@dataclass(frozen=True)
class Sources:
    """How far the sources had been read.

    Attributes:
        offsets: the lines of the epoch's file in Spark's offset log; none: the savepoint is none of Spark's.
        files: for each file source, by its number, the files that it had seen, as lines of Spark's own: JSON with
            ``path``, ``timestamp`` and ``batchId``.
        watermark: Spark's watermark after the epoch (epoch milliseconds), or 0.
    """

    offsets: tuple[str, ...] = ()
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    watermark: int = 0

    @property
    def are_named(self) -> bool:
        """Whether Spark knew them by names (``DataStreamReader.name``), and not by their order."""
        return self.offsets[:1] == ("v2",) and not all(line.partition(":")[0].isdecimal() for line in self.offsets[2:])


@dataclass(frozen=True)
class SlotColumn:
    """A column of one slot of rows.

    Attributes:
        name: unique in its table, whatever the case.
        space: whether it is of rows of namespaces, not of keys.
        slot: the slot's name, as the log has it.
        kind: the slot's kind.
        type: its plain type; None: values are pickled.
    """

    name: str
    space: bool
    slot: str
    kind: str
    type: str | None = None


@dataclass(frozen=True)
class ArrowPart:
    """Arrow rows that an operator by columns keeps as streams in one of its slots: a column of structs.

    Attributes:
        name: the column: ``partials``; or ``left`` and ``right``.
        slot: the slot of rows of namespaces that has the streams.
        keys: which of the rows' columns are key columns.
        schema: the rows' Arrow schema, serialised, in base64.
    """

    name: str
    slot: str
    keys: tuple[str, ...]
    schema: str

    @staticmethod
    def of(name: str, slot: str, keys: Sequence[str], schema: pa.Schema) -> ArrowPart:
        """Return the part for rows of an Arrow schema."""
        return ArrowPart(name, slot, tuple(keys), base64.b64encode(schema.serialize().to_pybytes()).decode())

    @property
    def arrow_schema(self) -> pa.Schema:
        """The rows' Arrow schema."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))


@dataclass(frozen=True)
class OperatorTable:
    """The table of an operator's state, and all that the heads of its logs said.

    Attributes:
        uid: the operator's.
        parallelism: the number of its subtasks.
        max_parallelism: the number of key groups.
        key: the description of its key.
        key_type: the plain type of the column of keys; None: they are pickled.
        program: (uid, vertex, level) of all operators with state.
        version: the number of epochs of the longest of its logs.
        types: the declared types of states, by name of slot, as heads have them.
        layout: the slots of rows of keys.
        space_layout: the slots of rows of namespaces.
        columns: the columns of the slots, but for timers and for what is in parts.
        parts: the Arrow rows of an operator by columns.
        depends_on: what the state depends on besides the key.
    """

    uid: str
    parallelism: int
    max_parallelism: int
    key: KeyNote | None
    key_type: str | None
    program: tuple[tuple[str, int, int], ...]
    version: int
    types: Mapping[str, str]
    layout: tuple[tuple[str, str], ...]
    space_layout: tuple[tuple[str, str], ...]
    columns: tuple[SlotColumn, ...]
    parts: tuple[ArrowPart, ...] = ()
    depends_on: StateNote = field(default_factory=dict)

    @staticmethod
    def of(heads: Iterable[LogHead], parts: Mapping[str, pa.Schema] | None = None) -> OperatorTable:
        """Return the table for the logs of an operator.

        Args:
            heads: the heads of all its subtasks that have one: at least one.
            parts: of an operator by columns, the Arrow schemas of its rows, by the names of the columns of structs.
        """
        heads = sorted(heads, key=lambda head: head.subtask)
        one = heads[0]
        layout, space_layout = _slots([head.layouts for head in heads]), _slots([head.space_layouts for head in heads])
        types = {name: kind for name, kind in types_of_slots(heads).items() if kind is not None}
        streams = parts_slot(layout, space_layout)
        found = [
            ArrowPart.of(name, streams, _keys_of(one.key, name), schema)
            for name, schema in sorted((parts or {}).items())
            if streams is not None
        ]
        return OperatorTable(
            uid=one.operator,
            parallelism=one.parallelism,
            max_parallelism=one.max_parallelism,
            key=one.key,
            key_type=type_of_keys(head.key for head in heads),
            program=tuple((uid, number, level) for uid, number, level in one.program),
            version=max(head.version for head in heads),
            types=types,
            layout=tuple(layout),
            space_layout=tuple(space_layout),
            columns=tuple(columns_of(layout, space_layout, types, found)),
            parts=tuple(found),
            depends_on=one.depends_on,
        )

    def head(self, subtask: int = 0) -> LogHead:
        """Return what a head of a log with this state says of it, but for the log."""
        return LogHead(
            operator=self.uid,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            subtask=subtask,
            layouts=[(1, list(self.layout))],
            version=self.version,
            program=self.program,
            key=self.key,
            depends_on=self.depends_on,
            space_layouts=[(1, list(self.space_layout))] if self.space_layout else [],
            types=dict(self.types),
        )


def parts_slot(layout: Iterable[tuple[str, str]], space_layout: Iterable[tuple[str, str]]) -> str | None:
    """Return the slot where an operator by columns keeps its Arrow streams; None: it is not such an operator."""
    keys, namespaces = set(layout), set(space_layout)
    if not keys and ("state/partials", "map") in namespaces and namespaces <= _PARTIALS:
        return "state/partials"
    if namespaces == _JOINED and keys >= _BUFFERS:
        return "state/rows"
    return None


def parts_slot_of(head: LogHead) -> str | None:
    """Return the slot of a log in which Arrow streams lie; None: it is none of an operator by columns."""
    keys, namespaces = ({(name, kind) for lead, name, kind in head.slots() if lead == of} for of in ("", "space/"))
    return parts_slot(keys, namespaces)


@dataclass(frozen=True)
class Manifest:
    """All that a savepoint says of itself.

    Attributes:
        pillarbox: the version that wrote it.
        epoch: the number of the epoch whose state it is.
        programs: the descriptions of the query's programs, as next to a checkpoint; None: there are none.
        operators: the tables.
        sources: how far the sources had been read.
        files: what each data file has to be, by its path in the directory.
        checkpoint: of which it was made, for people.
        drained: whether event time has ended.
        format: of the savepoint.
    """

    pillarbox: str
    epoch: int
    programs: list[dict[str, Any]] | None
    operators: tuple[OperatorTable, ...]
    sources: Sources
    files: Mapping[str, FileDigest]
    checkpoint: str = ""
    drained: bool = False
    format: int = FORMAT

    def operator(self, uid: str) -> OperatorTable:
        """Return the table of an operator.

        Raises:
            CheckpointMismatchError: there is no state of it.
        """
        for each in self.operators:
            if each.uid == uid:
                return each
        has = ", ".join(repr(each.uid) for each in self.operators) or "no operator"
        raise CheckpointMismatchError(
            f"the savepoint has no state of an operator with the uid {shorten(uid)}; it has state of {has}"
        )

    def to_json(self) -> str:
        """Return it as one line of JSON, which proves itself: ``digest`` covers all other fields."""
        content = asdict(self)
        return _canonical({**content, "digest": _digest_of(content)})

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Return a manifest that was written.

        Raises:
            CheckpointMismatchError: it is none, or not as it was written, or of a newer version, or has a field that is
                not known here.
        """
        try:
            content = json.loads(text)
        except ValueError as error:
            raise CheckpointMismatchError(f"the manifest of the savepoint is no JSON: {error}") from error
        written = content.get("format") if isinstance(content, dict) else None
        if not isinstance(written, int):
            raise CheckpointMismatchError("the manifest of the savepoint is none that pillarbox has written")
        if written != FORMAT:
            raise CheckpointMismatchError(
                f"the savepoint has format {written}, this version of pillarbox reads format {FORMAT}:"
                f" {advice_on_version(written, FORMAT)}"
            )
        digest = content.pop("digest", None)
        if digest != _digest_of(content):
            raise CheckpointMismatchError(
                "the manifest of the savepoint is not as it was written: its digest is not that of its content; it is"
                " damaged, or was edited: take a copy of the savepoint, or another one"
            )
        _check_fields(Manifest, content)
        try:
            made: Manifest = _made(
                Manifest,
                content,
                operators=tuple(map(_operator, content["operators"])),
                sources=_sources(content["sources"]),
                files={path: _made(FileDigest, each) for path, each in content["files"].items()},
            )
        except (LookupError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
            what = f"the manifest of the savepoint is not complete: {describe(error)}"
            raise CheckpointMismatchError(what) from error
        return made

    def check_files(self, directory: object, present: Mapping[str, FileDigest | int]) -> None:
        """Check that the data files in a directory belong to the savepoint.

        Args:
            directory: for people.
            present: for each file the digest of what is in it, or as much as is known of it: its length in bytes.

        Raises:
            CheckpointMismatchError: a file is missing, or more, or not as it was written.
        """
        for name in sorted({*self.files, *present}):
            if name not in present:
                raise CheckpointMismatchError(f"savepoint {directory}: the file {name} is missing")
            if name not in self.files:
                raise CheckpointMismatchError(f"savepoint {directory}: the file {name} is none of its own; remove it")
            wanted, found = self.files[name], present[name]
            if found != (wanted.length if isinstance(found, int) else wanted):
                raise CheckpointMismatchError(f"savepoint {directory}: the file {name} is damaged")


#: The files by which a directory is known as a savepoint, complete or not; and what the latter holds.
MANIFEST = "manifest"
STARTED = "started"
BEGUN = "a savepoint of pillarbox was begun here"


def table_folder(uid: str) -> str:
    """Return where the table of an operator lies in a savepoint: by its uid, as far as that is a name for a folder.

    Names that differ by their case alone are one folder for some file systems, so a capital letter is no part of one.
    """
    name = re.sub(r"[^a-z0-9.-]", "-", uid.lower()).lstrip(".-")
    if name != uid or len(uid) > 100:
        name = f"{name[:60] or 'uid'}-{hashlib.sha256(uid.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
    return f"state/{name}"


# -- from heads --


def types_of_slots(heads: Iterable[LogHead]) -> dict[str, str | None]:
    """Return the declared types of the slots of logs, as heads name them; None: it is not known, or not the same."""
    known: dict[str, set[str | None]] = {}
    for head in heads:
        for lead, slot, _ in head.slots():
            known.setdefault(lead + slot, set()).add(head.types.get(lead + slot))
    return {name: types.pop() if len(types) == 1 else None for name, types in known.items()}


def unique_name(name: str, used: set[str]) -> str:
    """Return a name for a column that none of the used ones has, whatever the case, and add it to these."""
    while name.lower() in used:
        name = f"state_{name}"
    used.add(name.lower())
    return name


def _slots(layouts: Sequence[Sequence[tuple[int, Layout]]]) -> list[tuple[str, str]]:
    """Return the slots of all layouts, starting with the slots of the newest."""
    newest = [slot for each in layouts for _, layout in each[-1:] for slot in layout]
    every = [slot for each in layouts for _, layout in each for slot in layout]
    return list(dict.fromkeys((name, kind) for name, kind in [*newest, *every]))


def columns_of(
    layout: Layout, space_layout: Layout, types: Mapping[str, str], parts: Sequence[ArrowPart]
) -> Iterable[SlotColumn]:
    """Return the columns of slots, but for timers and for what is in parts."""
    used = {name.lower() for name in (*RESERVED, *(part.name for part in parts))}
    in_parts = {part.slot for part in parts}
    for space, slots in ((False, layout), (True, space_layout)):
        for slot, kind in slots:
            if kind == "timers" or (space and slot in in_parts):
                continue
            name = unique_name(state_name(slot), used)
            declared = types.get(f"space/{slot}" if space else slot)
            yield SlotColumn(name, space, slot, kind, declared if is_typed(declared) else None)


def type_of_keys(notes: Iterable[KeyNote | None]) -> str | None:
    """Return the plain type of keys; None: it is not known, or not the same for all inputs."""
    types, columns = declared_key(notes)
    found = list(map(scalar_of_spark, types))
    names = [each.name for each in found if each is not None]
    if not names or len(names) < len(found):
        return None
    if len(names) == 1:
        return names[0]
    if len({each.lower() for each in columns}) == len(names) and all(re.fullmatch(r"\w+", each) for each in columns):
        names = [f"{column}: {name}" for column, name in zip(columns, names)]
    return f"TUPLE({', '.join(names)})"


def _keys_of(key: KeyNote | None, part: str) -> Sequence[str]:
    """Return the key columns of the rows of an operator by columns."""
    notes = (key or {}).get("inputs") or [key or {}]
    return notes[-1 if part == "right" else 0].get("columns", [])


# -- from JSON --


def _check_fields(kind: type[Any], content: Any) -> None:
    known = {each.name for each in fields(kind)}
    unknown = sorted(set(content) - known) if isinstance(content, dict) else ["it is no object"]
    if unknown:
        raise CheckpointMismatchError(
            f"the manifest of the savepoint holds {unknown[0]!r} ({kind.__name__}), which this version of pillarbox"
            " does not know: update pillarbox"
        )


def _canonical(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _digest_of(content: Mapping[str, Any]) -> str:
    """Return the digest of all fields of a manifest but that itself."""
    return hashlib.sha256(_canonical(content).encode()).hexdigest()


def _made(kind: type[Any], content: Any, **parts: Any) -> Any:
    _check_fields(kind, content)
    return kind(**{**content, **parts})


def _operator(content: Any) -> OperatorTable:
    _check_fields(OperatorTable, content)
    made: OperatorTable = _made(
        OperatorTable,
        content,
        program=tuple((uid, number, level) for uid, number, level in content["program"]),
        layout=tuple((name, kind) for name, kind in content["layout"]),
        space_layout=tuple((name, kind) for name, kind in content["space_layout"]),
        columns=tuple(_made(SlotColumn, each) for each in content["columns"]),
        parts=tuple(_made(ArrowPart, each, keys=tuple(each["keys"])) for each in content["parts"]),
    )
    for part in made.parts:
        part.arrow_schema  # noqa: B018 - what is wrong with one is found here, not where rows are read
    return made


def _sources(content: Any) -> Sources:
    made: Sources = _made(
        Sources,
        content,
        offsets=tuple(content["offsets"]),
        files={number: tuple(lines) for number, lines in content["files"].items()},
    )
    return made
