"""A chunk of a state log: the entries that an epoch adds, as plain data around the users' rows.

A chunk is a pickled dictionary. docs/checkpoint-format.md lists the kinds of records; a chunk
with a kind that this version does not know is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import is_
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._elements.buffers import dumps_by_name
from pillarbox._errors import CheckpointMismatchError, describe, shorten
from pillarbox._state.chunks.head import Layout, LogIdentity, Mark, cannot_become, damaged, newer, refused, unreadable
from pillarbox._state.chunks.large_collection import Elements
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._state.keys.addresses import is_namespaced, namespace_address
from pillarbox._state.slots import FIRST_SLOT, SlotSpec, state_name
from pillarbox._state.types.class_names import ImportedNames
from pillarbox._state.types.opaque import Opaque, equal_keys, loads_inert, opaques_in
from pillarbox._state.types.records import RecordError
from pillarbox._unpickle import Allowed, RefusedGlobalError, UnpickleGlobalError, loads_allowed

# In the log slots are counted from 1, without what leads a row in memory.
_LEAD = FIRST_SLOT - 1
_WIDTHS = tuple(np.dtype(f"<u{width}") for width in (1, 2, 4, 8))
_KNOWN = frozenset({"epoch", "before", "keys", "rows", "replaced", "weights", "large", "spaces"}) | frozenset(
    {"apart", "elements", "element_weights"}
)


@dataclass
class Chunk:
    """The entries of a chunk, rows and elements of large maps and lists, and the entries that they replace.

    Attributes:
        keys: the addresses of the rows.
        rows: the rows, as they are written: without address; None instead of a large one.
        namespaces: how many of them, the last ones, are rows of namespaces.
        elements: the elements; their entries follow the entries of the rows.
        apart: which rows have maps and lists whose elements are entries of their own, and how many, by slot.
        replaced: how far before the chunk's first entry those entries are that are out of date now: older values of
            its rows, and the rows of keys that were removed.
        epoch: the epoch that wrote it.
        before: size and digest of the chunk before it; None: it is the first one of its log.
        weights: about how many bytes each entry takes, for their proportions; None: all take the same.
        large: which entries lie in values of their own, and where: number, and mark.
        beside: how many bytes of the chunk are no entries: the list of the entries that it replaces, and ordinals.
        number: its own.
        start: the number of its first entry.
        size: how many bytes it takes in the store.
        current: which of its entries hold the state as it is, where it was read.
    """

    keys: list[Any] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    replaced: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    epoch: int = 0
    before: Mark | None = None
    weights: npt.NDArray[np.uint32] | None = None
    large: dict[int, tuple[int, Mark]] = field(default_factory=dict)
    beside: int = 0
    namespaces: int = 0
    elements: list[Elements] = field(default_factory=list)
    apart: dict[int, dict[int, int]] = field(default_factory=dict)
    number: int = 0
    start: int = 0
    size: int = 0
    current: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))

    @property
    def own_keys(self) -> int:
        """How many rows, the first ones, belong to keys."""
        return len(self.keys) - self.namespaces

    @property
    def parts(self) -> tuple[slice, slice]:
        """Which rows belong to keys, and which belong to namespaces."""
        return slice(0, self.own_keys), slice(self.own_keys, len(self.keys))

    def is_namespaced(self, index: int) -> bool:
        """Return whether a row belongs to a namespace."""
        return index >= self.own_keys

    def element_parts(self) -> Iterator[tuple[Elements, slice]]:
        """Return the elements of each map and list, and which of the entries they are."""
        at = len(self.keys)
        for found in self.elements:
            yield found, slice(at, at := at + len(found.values))

    def current_elements(self) -> Iterator[tuple[Elements, npt.NDArray[np.int64]]]:
        """Return the current elements of each map and list that has any, and their entries."""
        for found, part in self.element_parts():
            chosen = self.current[part]
            if chosen.any():
                yield found.chosen(chosen), np.arange(self.start + part.start, self.start + part.stop)[chosen]

    @property
    def count(self) -> int:
        """The number of entries."""
        return len(self.keys) + sum(len(group.values) for group in self.elements)

    def put(self, index: int, value: Any) -> None:
        """Replace the row or element of an entry."""
        if index < len(self.rows):
            self.rows[index] = value
            return
        found, part = next(each for each in self.element_parts() if index < each[1].stop)
        found.values[index - part.start] = value

    def encode(self, dump: Callable[[Any], bytes] = dumps_by_name) -> bytes:
        """Return the chunk as it stands in the store."""
        content: dict[str, Any] = {"epoch": self.epoch, "keys": self.keys, "rows": self.rows}
        if self.namespaces:
            own = self.own_keys
            of = self.keys[own:]
            content["keys"], content["rows"] = self.keys[:own], self.rows[:own]
            content["spaces"] = [key for key, *_ in of], [namespace for _, namespace, _ in of], self.rows[own:]
        if self.before is not None:
            content["before"] = tuple(self.before)
        self.beside = 0
        if len(self.replaced):
            content["replaced"] = _packed(self.replaced)
            self.beside += len(content["replaced"][1])
        if self.weights is not None:
            rows, elements = self.weights[: len(self.keys)], self.weights[len(self.keys) :]
            if len(rows):
                content["weights"] = rows.astype("<u4").tobytes()
                self.beside += 4 * len(rows)
            if len(elements):
                alike = int(elements.min()) == int(elements.max())
                content["element_weights"] = elements[: 1 if alike else None].astype("<u4").tobytes()
                self.beside += len(content["element_weights"])
        if self.large:
            content["large"] = {index: (number, *mark) for index, (number, mark) in self.large.items()}
        if self.apart:
            content["apart"] = {
                index: {slot - _LEAD: count for slot, count in counts.items()} for index, counts in self.apart.items()
            }
        if self.elements:
            content["elements"] = groups = []
            for address, slot, ordinals, keys, values in self.elements:
                first, width, steps = _packed_ordinals(ordinals)
                row = address[:2] if is_namespaced(address) else (address,)
                groups.append((row, slot - _LEAD, (first, width, steps), keys, values))
                self.beside += len(steps)
        return dump(content)

    @property
    def own(self) -> float:
        """How many of the bytes of the chunk are its entries: what a new log would take for them."""
        return float(self.size - self.beside) if self.count else 0.0

    def sizes(self) -> npt.NDArray[np.float32] | None:
        """Return how many bytes each entry takes; None: all take the same."""
        if self.weights is None:
            return None
        factor = np.float32(self.own / max(1.0, float(self.weights.sum())))
        sizes: npt.NDArray[np.float32] = np.multiply(self.weights, factor, dtype=np.float32)
        return sizes


def _packed(distances: npt.NDArray[np.int64]) -> tuple[int, bytes]:
    """Return distances in a byte or two each: sorted, as the steps between them, in numbers of this many bytes."""
    steps = np.diff(np.sort(distances), prepend=0)
    width = next(width for width in _WIDTHS if steps.max() <= np.iinfo(width).max)
    return width.itemsize, steps.astype(width).tobytes()


def _unpacked(packed: tuple[int, bytes]) -> npt.NDArray[np.int64]:
    width, steps = packed
    return np.cumsum(np.frombuffer(steps, f"<u{width}"), dtype=np.int64)


def _packed_ordinals(ordinals: npt.NDArray[np.int64]) -> tuple[int, int, bytes]:
    """Return ascending numbers as the first one and the steps between them; width 0: each is one more."""
    first, steps = int(ordinals[0]), np.diff(ordinals)
    if (steps == 1).all():
        return first, 0, b""
    return first, *_packed(np.cumsum(steps))


def _unpacked_ordinals(packed: tuple[int, int, bytes], count: int) -> npt.NDArray[np.int64]:
    first, width, steps = packed
    if width == 0:
        return np.arange(first, first + count)
    return np.concatenate([np.array([first]), first + _unpacked((width, steps))])


def read_chunk(
    store: ChunkStore,
    number: int,
    mark: Mark,
    identity: LogIdentity,
    layouts: tuple[Layout, Layout],
    allowed: Allowed,
) -> Chunk:
    """Return a chunk.

    Args:
        mark: the size and digest that it must have.
        layouts: what the slots of rows hold, for rows of keys and for rows of namespaces, for people.
        allowed: what it may name.

    Raises:
        CheckpointMismatchError: it is missing, or not as it was written; or something in it cannot be read.
    """
    payload = store.get(number)
    if payload is None:
        raise _missing(identity, f"chunk {number} of the state", mark)
    content = _checked(payload, mark, identity, f"chunk {number} of the state", layouts, allowed)
    if not isinstance(content, dict):
        raise damaged(identity, f"chunk {number} of the state", "it is no dictionary")
    unknown = sorted(content.keys() - _KNOWN)
    if unknown:
        raise newer(identity, unknown[0])
    try:
        chunk = _made(content)
    except Exception as error:
        raise damaged(identity, f"chunk {number} of the state", describe(error)) from error
    chunk.number, chunk.size = number, mark.size
    return chunk


def _made(content: dict[str, Any]) -> Chunk:
    """Return the chunk of what was unpickled."""
    before, weights, replaced = content.get("before"), content.get("weights"), content.get("replaced")
    _check_lengths(content["keys"], content["rows"])
    chunk = Chunk(
        _list(content["keys"]),
        _list(content["rows"]),
        np.zeros(0, np.int64) if replaced is None else _unpacked(replaced),
        content["epoch"],
        None if before is None else Mark(*before),
        None if weights is None else np.frombuffer(weights, "<u4"),
        {index: (number, Mark(*mark)) for index, (number, *mark) in content.get("large", {}).items()},
        (0 if replaced is None else len(replaced[1])) + (0 if weights is None else len(weights)),
    )
    if "spaces" in content:
        keys, namespaces, rows = map(_list, content["spaces"])
        _check_lengths(keys, namespaces, rows)
        chunk.keys += map(namespace_address, keys, namespaces)
        chunk.rows += rows
        chunk.namespaces = len(keys)
    if "apart" in content:
        chunk.apart = content["apart"]
    for row, slot, ordinals, keys, values in content.get("elements", ()):
        address = row[0] if len(row) == 1 else namespace_address(*row)
        names = None if keys is None else _list(keys)
        chunk.elements.append(Elements(address, slot, _unpacked_ordinals(ordinals, len(_list(values))), names, values))
        chunk.beside += len(ordinals[2])
    of_elements = content.get("element_weights")
    if of_elements is not None:
        chunk.beside += len(of_elements)
        each = np.frombuffer(of_elements, "<u4")
        elements = np.broadcast_to(each, chunk.count - len(chunk.keys)) if len(each) == 1 else each
        chunk.weights = np.concatenate([np.zeros(0, "<u4") if chunk.weights is None else chunk.weights, elements])
    return chunk


def _check_lengths(*lists: list[Any]) -> None:
    if len(set(map(len, lists))) > 1:
        raise ValueError(f"its lists of keys and rows have {', '.join(map(str, map(len, lists)))} elements")


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError(f"{shorten(value)} is no list")
    return value


def read_large(
    chunk: Chunk,
    store: ChunkStore,
    identity: LogIdentity,
    allowed: Allowed,
    fit: Callable[[int, Layout, list[Any]], list[Any]],
) -> Iterator[tuple[int, int, Mark]]:
    """Put the large rows and elements of a chunk, so far as they are current, into their places.

    Args:
        allowed: what they may name.
        fit: called with the index of a row in the chunk, its slots, and the row: returns it with the slots that it is
            to have. Cleaning moves the entry, never the value: its slots may be in another order than those of the
            chunk.

    Returns:
        the index, the number and the mark of each.

    Raises:
        CheckpointMismatchError: one is missing, or not as it was written; or something in it cannot be read.
    """
    for index, (number, mark) in chunk.large.items():
        if not chunk.current[index]:
            continue
        what = f"large row {-number} of the state"
        payload = store.get(number)
        if payload is None:
            raise _missing(identity, what, mark)
        content: dict[str, Any] = _checked(payload, mark, identity, what, ([], []), allowed)
        of_row = index < len(chunk.keys)
        if type(content) is not dict or content.keys() != ({"slots", "row"} if of_row else {"element"}):
            raise damaged(identity, what, f"it is no {'row' if of_row else 'element'}")
        if of_row and not (type(content["row"]) is list and len(content["row"]) == 1 + len(content["slots"])):
            raise damaged(identity, what, f"it has not its {len(content['slots'])} slots")
        chunk.put(index, fit(index, content["slots"], content["row"]) if of_row else content["element"])
        yield index, number, mark


def large_values(payload: bytes) -> list[int]:
    """Return the numbers of a chunk's large rows and elements, or [] for a damaged chunk."""
    try:
        return [number for number, *_ in loads_inert(payload).get("large", {}).values()]
    except Exception:
        return []


def check_keys(
    payloads: Iterable[bytes | None],
    identity: LogIdentity,
    layouts: tuple[Layout, Layout],
    fields: Mapping[tuple[str, str], Sequence[str]],
) -> None:
    """Check that no two keys of a map, and no two members of a set, have become equal by losing fields.

    Args:
        payloads: a chunk and its large values.
        fields: by the names of dataclasses and named tuples, the fields by which their objects are compared now.

    Raises:
        CheckpointMismatchError: two have.
    """
    for payload in payloads:
        content = None if payload is None else loads_inert(payload)
        equal = equal_keys(content, fields)
        if equal is not None:
            raise cannot_become(
                identity,
                _where_in(content, *layouts, partial(is_, equal)) or "a state",
                f"keys of {'.'.join(equal.where)} that differed by a field that the class has no more are equal now,"
                " and their entries would become one: keep the field",
            )


def large_row(slots: Layout, row: list[Any], dump: Callable[[Any], bytes] = dumps_by_name) -> bytes:
    """Return a row as it stands in the store by itself: it stays there when the program gets other states."""
    return dump({"slots": slots, "row": row})


def large_element(value: Any, dump: Callable[[Any], bytes] = dumps_by_name) -> bytes:
    """Return an element of a large map or list as it stands in the store by itself."""
    return dump({"element": value})


def _checked(
    payload: bytes,
    mark: Mark,
    identity: LogIdentity,
    what: str,
    layouts: tuple[Layout, Layout],
    allowed: Allowed,
) -> Any:
    if not mark.fits(payload):
        length = f", {len(payload)} bytes where {mark.size} were" if len(payload) != mark.size else ""
        raise damaged(identity, f"{what}, of epoch {mark.epoch},", f"its digest does not fit{length}")
    try:
        content = loads_allowed(payload, allowed)
        if isinstance(allowed, ImportedNames):
            allowed.check_places(payload)
        return content
    except UnpickleGlobalError as error:
        raise unreadable(identity, _where(payload, *layouts, _names(error.args[:2])), error) from error
    except RefusedGlobalError as error:
        raise refused(identity, _where(payload, *layouts, _names(error.args[:2])), error) from error
    except RecordError as error:
        names = allowed.names_of(error.record) if isinstance(allowed, ImportedNames) else []
        names = names or [(error.record.__module__, error.record.__qualname__)]
        raise cannot_become(identity, _where(payload, *layouts, _names(*names)), str(error)) from error
    except Exception as error:
        where = _found(payload, *layouts, allowed.is_misfit) if isinstance(allowed, ImportedNames) else ""
        raise CheckpointMismatchError(
            f"{identity}: {what}, of epoch {mark.epoch}, cannot be read{where and f' (in {where})'}: {describe(error)};"
            " it is as it was written, so a class in it does not read what it wrote before: let it, as with a default"
            " for a new field and the members that an enum had, or start from a new checkpoint"
        ) from error


def _missing(identity: LogIdentity, what: str, mark: Mark) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"{identity}: {what}, of epoch {mark.epoch} and {mark.size} bytes, is missing in the checkpoint: it is damaged;"
        " start from an older copy of it, or from a new one"
    )


_Test = Callable[["Opaque | type[Opaque]"], bool]


def _names(*names: tuple[Any, ...]) -> _Test:
    return lambda made: made.where in names


def _where(payload: bytes, layout: Layout, space_layout: Layout, test: _Test) -> str:
    """Return which state of which key holds a value with something that is looked for."""
    found = _found(payload, layout, space_layout, test)
    return found or (f"one of the states {', '.join(repr(state_name(name)) for name, _ in layout + space_layout)}")


def _found(payload: bytes, layout: Layout, space_layout: Layout, test: _Test) -> str:
    """Return the same; "" where it is not found. Nothing in the pickle is run."""
    try:
        return _where_in(loads_inert(payload), layout, space_layout, test)
    except Exception:
        return ""  # the error about the class is the one to report


def _where_in(content: Any, layout: Layout, space_layout: Layout, test: _Test) -> str:
    """Return the same of what was read by stand-ins."""
    if "element" in content:
        return "an element of a large map or list"
    values = _values_in(content, (layout, space_layout))
    return next((where for value, where in values if any(map(test, opaques_in(value)))), "")


def _values_in(content: Any, layouts: tuple[Layout, Layout]) -> Iterator[tuple[Any, str]]:
    """Return all values in a chunk, or in a large row, and where each is, for people."""

    def in_row(row: list[Any] | None, layout: Layout, owner: str) -> Iterator[tuple[Any, str]]:
        for slot, value in zip(layout, (row or ())[1:]):
            yield value, f"{SlotSpec(*slot).title} of {owner}"

    if "row" in content:
        yield from in_row(content["row"], content["slots"], "a key with much state")
        return
    kinds = (content["keys"], None, content["rows"]), content.get("spaces", ([], [], []))
    for of, (keys, _, rows) in zip(layouts, kinds):
        for key, row in zip(keys, rows):
            yield key, f"the key {shorten(key)}"
            yield from in_row(row, of, f"the key {shorten(key)}")
    for address, place, _, names, values in content.get("elements", ()):
        slot = layouts[len(address) > 1][place - 1]
        yield (names, values), f"{SlotSpec(*slot).title} of the key {shorten(address[0])}"
