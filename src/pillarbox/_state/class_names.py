"""What pickles of state get for the names in them where any may be named: what is there, or where it has moved to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pillarbox._state.records import RecordError, field_names, is_pickled_by_places, is_record
from pillarbox._unpickle import Allowed, StandIn, find_global, loads_allowed, loads_allowed_with_stand_ins

__all__ = ["Classes", "Without", "without"]


class Classes(Allowed):
    """Names by which anything may be imported.

    Args:
        moved: the classes that have moved, by module and name of before.

    Attributes:
        records: the dataclasses and named tuples that were named since :meth:`forget`, by module and name.
        has_moved: whether any that has moved was named since.
    """

    def __init__(self, moved: Mapping[tuple[str, str], type]) -> None:
        super().__init__()
        self._moved = moved
        self._known: dict[tuple[str, str], Any] = {}
        self.records: dict[tuple[str, str], type] = {}
        self.has_moved: bool = False

    def forget(self) -> None:
        """Forget which were named so far."""
        self.records = {}
        self.has_moved = False

    def get(self, where: Any, default: Any = None) -> Callable[[], Any]:
        """Return what finds a thing by its name.

        Raises:
            MissingGlobalError: (when it is called) there is no such thing.
        """
        return lambda: self._find(where)

    def _find(self, where: tuple[str, str]) -> Any:
        found = self._known.get(where)
        if found is None:
            found = self._known[where] = self._moved.get(where) or find_global(*where)
        self.has_moved = self.has_moved or where in self._moved
        if isinstance(found, type) and is_record(found):
            self.records[where] = found
        return found

    def check_places(self, payload: bytes | memoryview) -> None:
        """Check the values of a pickle that was read whose fields are told from each other by their places alone.

        Raises:
            RecordError: there are more than the class has fields now; Python takes the first of them.
        """
        for where, record in list(self.records.items()):
            if is_pickled_by_places(record):
                longest = _longest(payload, where, self)
                if longest > len(field_names(record)):
                    raise RecordError(
                        record,
                        f"has {len(field_names(record))} fields, and the value was written with {longest}, of which"
                        " nothing says the names: keep the fields that it had",
                    )


def _longest(payload: bytes | memoryview, where: tuple[str, str], classes: Classes) -> int:
    """Return the most fields that any value of a class was written with."""
    lengths = [0]

    class Counting(StandIn):
        def __setstate__(self, state: Any) -> None:
            lengths.append(len(state))

    loads_allowed(payload, _Instead(classes, where, Counting))
    return max(lengths)


class _Instead(Allowed):
    """Names with another thing for one of them."""

    def __init__(self, others: Allowed, where: tuple[str, str], thing: type) -> None:
        super().__init__()
        self._others = others
        self._where = where
        self._thing = thing

    def get(self, where: Any, default: Any = None) -> Any:
        return (lambda: self._thing) if where == self._where else self._others.get(where)


class Without(Allowed):
    """Names without one of them."""

    def __init__(self, others: Allowed, missing: tuple[str, str]) -> None:
        super().__init__()
        self._others = others
        self._missing = missing

    def get(self, where: Any, default: Any = None) -> Any:
        """Return what finds a thing by its name; None: it may not be named."""
        return None if where == self._missing else self._others.get(where)


def without(classes: Classes, payload: bytes | memoryview) -> Without | None:
    """Return names without that of the class that keeps a pickle from being read; None: it is not known which."""
    for where in list(classes.records):
        others = Without(classes, where)
        try:
            loads_allowed_with_stand_ins(payload, others)
        except Exception:
            continue
        return others
    return None
