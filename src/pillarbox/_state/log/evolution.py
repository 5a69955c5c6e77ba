"""Schema evolution: values of a log become values of the declared types, also where classes or their fields changed.

It is for one cold start. If anything differs from what was written, all state of the operator is rewritten with
the first epoch, and the earlier chunks go: so all values in a log are of the types in its head, and a former name
is of no use after that epoch. Only the mailbox thread may touch it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any
from uuid import UUID

from pillarbox._errors import CheckpointMismatchError, shorten
from pillarbox._state.chunks.head import LogHead, LogIdentity, cannot_become
from pillarbox._state.chunks.large_collection import Elements
from pillarbox._state.heap.rows import RowTable
from pillarbox._state.keys.addresses import OPERATOR
from pillarbox._state.keys.key_groups import subtask_of_key
from pillarbox._state.log.contents import LogContents
from pillarbox._state.log.plain_states import PlainStates
from pillarbox._state.slots import FIRST_SLOT, Row
from pillarbox._state.types.class_names import ImportedNames
from pillarbox._state.types.opaque import Distinct, name_of_class
from pillarbox._state.types.records import RecordError, fill, reader
from pillarbox._state.types.type_names import TypeName, change_of_type, parse, refusal
from pillarbox._types.scalars import CLASSES
from pillarbox._unpickle import Allowed

# The hash of a key of these types never changes; the hash of a tuple is made of the hashes of its elements.
_WITHOUT_CLASS = CLASSES | {type(None), UUID}
_Converter = Callable[[Any], Any]


class Evolution:
    """What becomes of the values of a log.

    Attributes:
        allowed: what pickles may name.
        changes: whether any value became another than was written, so far.
    """

    allowed: Allowed

    def __init__(self, identity: LogIdentity) -> None:
        self._identity = identity
        self.changes: bool = False

    def note(self) -> None:
        """Take note that a value becomes another."""
        self.changes = True

    def rows(self, table: RowTable, rows: list[Row]) -> None:
        """Convert rows, and check them.

        Raises:
            CheckpointMismatchError: a value has no form in the program.
            TypeMismatchError: one is not of its declared type.
        """
        raise NotImplementedError

    def elements(self, table: RowTable, found: Elements) -> Elements:
        """Return elements of a large map or list, converted, and checked as rows are."""
        raise NotImplementedError

    def task_state(self, state: Any) -> None:
        """Do the same with what operators keep for themselves."""

    def end_chunk(self) -> Mapping[tuple[str, str], Sequence[str]]:
        """Take note that the next values are of another chunk.

        Returns:
            where keys in this one may have become equal since their classes have lost fields: by the names of
            dataclasses and named tuples, the fields by which their objects are compared.
        """
        return {}

    def check_owners(self, keys: Sequence[Any]) -> None:
        """Check that the keys still belong to this subtask, unless their hash cannot have changed.

        Raises:
            CheckpointMismatchError: one is another's.
        """
        mine = self._identity
        kinds: set[type] = set(map(type, keys)) if mine.parallelism > 1 else set()
        if tuple in kinds:
            kinds.remove(tuple)
            kinds.update(map(type, chain.from_iterable([key for key in keys if type(key) is tuple])))
        for key in () if kinds <= _WITHOUT_CLASS else keys:
            right = subtask_of_key(key, mine.max_parallelism, mine.parallelism)
            if right != mine.subtask:
                raise CheckpointMismatchError(
                    f"{mine}: the key {shorten(key)} belongs to subtask {right} now, since its class has changed: the"
                    " fields of a key, and of an enum the name, decide where it is; keep them as they were, or start"
                    " from a savepoint, which distributes the keys again"
                )


class _OfPickles(Evolution):
    """Of pickled values: classes are imported, and dataclasses get the fields that they were written without."""

    def __init__(self, identity: LogIdentity, classes: ImportedNames) -> None:
        super().__init__(identity)
        self.allowed = self._classes = classes
        classes.forget()
        self._with_more: set[type] = set()

    def _fill(self, values: Any, where: str) -> bool:
        try:
            changed = fill(values, self._with_more)
        except RecordError as error:
            raise cannot_become(self._identity, where, str(error)) from error
        if changed or self._classes.has_moved:
            self.note()
        return changed

    def rows(self, table: RowTable, rows: list[Row]) -> None:
        keys = [row[1] for row in rows]
        if table.is_namespaced:
            keys = [address[0] for address in keys if address != OPERATOR]
        if not self._classes.records and not self._classes.has_moved:
            self.check_owners(keys)
            return
        self._fill(keys, "a key")
        self.check_owners(keys)
        for slot, spec in enumerate(table.slots, FIRST_SLOT):
            if spec.kind != "timers":
                self._fill(list(map(itemgetter(slot), rows)), spec.title)

    def elements(self, table: RowTable, found: Elements) -> Elements:
        if self._classes.records or self._classes.has_moved:
            self._fill([*(found.keys or ()), *found.values], table.spec_of(found.slot).title)
        return found

    def end_chunk(self) -> Mapping[tuple[str, str], Sequence[str]]:
        fields = self._classes.fields_of_keys() if self._with_more else {}
        self._with_more = set()
        self._classes.records = {}
        if self._classes.has_moved:  # be it in what is out of date: that chunk has to go as well
            self.note()
        return fields

    def task_state(self, state: Any) -> None:
        if self._classes.records:
            self._fill([state], "records that an operator had not finished")


class _OfPlainValues(Evolution):
    """Of values of declared types: what becomes of them follows from the former types, in the head."""

    def __init__(
        self, identity: LogIdentity, plain: PlainStates, head: LogHead, moved: Mapping[tuple[str, str], type]
    ) -> None:
        super().__init__(identity)
        self._plain = plain
        written = plain.by_present_names(head.types)
        then = {name: parse(kind) for name, kind in written.items()}
        now = {name: parse(kind) for name, kind in plain.types.items()}
        names = {".".join(where): f"{record.__module__}.{record.__qualname__}" for where, record in moved.items()}
        for name, kind in now.items():
            why = refusal(then[name], kind, names) if name in then else None
            if why is not None:
                raise cannot_become(identity, plain.title_of(name), why)
        self._unchecked = {name for name, kind in now.items() if then.get(name) != kind}
        self._others: dict[type, bool] = {}
        self._converters: dict[str, _Converter] = {}
        for name in self._unchecked & then.keys():
            convert = change_of_type(then[name], now[name], names)
            if convert is not None:
                self._converters[name] = convert
        if self._converters or plain.is_renamed(head.types):
            self.note()
        self.allowed = self._names(then, now, moved)

    def _names(
        self, then: Mapping[str, TypeName], now: Mapping[str, TypeName], moved: Mapping[tuple[str, str], type]
    ) -> Allowed:
        """Return what pickles may name: the same as ever, with others in the places of classes that are others now."""
        names = _PlainNames(self._plain.allowed)
        fields = {each.kind: each.names for kind in then.values() for each in kind.every() if each.is_class}
        mine = {each.kind: each.names for kind in now.values() for each in kind.every() if each.is_class}
        for (module, name), record in self._plain.records.items():
            known = f"{module}.{name}"
            if fields.get(known) != mine.get(known):
                names[module, name] = partial(reader, record, fields.get(known), self.note)
            elif same := mine.get(known):
                names[module, name] = partial(self._same, record, same)
        for where, record in moved.items():
            if record in self._plain.records.values():
                names[where] = partial(self._moved, record, fields.get(".".join(where)))
        names.gone = fields.keys() - mine.keys() - {".".join(where) for where in names}
        if names.gone:
            self._unchecked = set(now)  # nothing that stands for them may be anywhere else
        return names

    def _same(self, record: type, fields: Sequence[str]) -> type:
        """Return what makes objects of a class that has the fields that it had.

        It may have been a named tuple, and be a dataclass. The first pickle with one of its objects tells, and all of
        them are alike.
        """
        if record not in self._others:
            self._others[record] = False
        elif not self._others[record]:
            return record

        def changed() -> None:
            self._others[record] = True
            self.note()

        return reader(record, fields, changed)

    def _moved(self, record: type, fields: Sequence[str] | None) -> type:
        self.note()
        return reader(record, fields, self.note)

    def rows(self, table: RowTable, rows: list[Row]) -> None:
        for slot, spec in enumerate(table.slots, FIRST_SLOT) if self._converters else ():
            convert = self._converters.get(table.lead + spec.name)
            for row in rows if convert is not None else ():
                if row[slot] is not None and convert is not None:
                    row[slot] = convert(row[slot])
        if self._unchecked:
            table.types.check(rows, self._unchecked)

    def elements(self, table: RowTable, found: Elements) -> Elements:
        spec = table.spec_of(found.slot)
        convert = self._converters.get(table.lead + spec.name)
        if convert is not None and found.keys is not None:
            changed = convert(dict(zip(found.keys, found.values)))
            found = found._replace(keys=list(changed), values=list(changed.values()))
        elif convert is not None:
            found = found._replace(values=convert(found.values))
        if table.lead + spec.name in self._unchecked:
            table.types.check_elements(spec, found)
        return found


class _PlainNames(Allowed):
    """Names in pickles of plain data; the names of classes of deleted states and fields stand for nothing.

    Attributes:
        gone: these classes.
    """

    gone: set[str]

    def get(self, where: Any, default: Any = None) -> Any:
        found = super().get(where)
        if found is None and ".".join(where) in self.gone:
            return partial(name_of_class, where, Distinct)
        return found


def evolution_of(contents: LogContents, head: LogHead) -> Evolution:
    """Return what becomes of the values of a log.

    Raises:
        CheckpointMismatchError: some state can never become what the program declares.
    """
    if contents.plain is None:
        return _OfPickles(contents.identity, contents.classes)
    return _OfPlainValues(contents.identity, contents.plain, head, contents.moved)
