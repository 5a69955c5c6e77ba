"""The common part of all state descriptors: a name, the former names, a time-to-live."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, get_origin

from pillarbox._errors import ProgramError, shorten
from pillarbox._state.ttl import StateTtlConfig

if TYPE_CHECKING:
    from typing_extensions import Self

_NO_TYPES = (str, bytes, int, float, list, tuple, dict, set)


class StateDescriptor:
    """Name and kind of a state. ``type_info`` arguments may be left out, as in PyFlink.

    They are ``Types``, or a class: a dataclass, a ``typing.NamedTuple``, ``int`` and so on; a class in brackets, as in
    ``ValueStateDescriptor[float]("total")``, is as good. Where the types of the key
    and of all states of an operator are declared and plain, its state is plain data in the checkpoint
    (docs/security.md). A value that does not fit a plain type is refused, wherever the function runs.
    """

    kind = "state"
    # Which of the types in brackets are those of its values.
    _in_brackets: tuple[int, ...] = (0,)

    def __init__(self, name: str, *types: Any) -> None:
        if not isinstance(name, str) or not name:
            raise ProgramError(f"a state's name is a non-empty string, not {shorten(name)}")
        for declared in types:
            if inspect.isroutine(declared) or isinstance(declared, _NO_TYPES):
                raise ProgramError(
                    f"the state {name!r}: the type of its values is one of Types, such as Types.LONG(), or a class, not"
                    f" {shorten(declared)}"
                )
        self.name = name
        self._types = types or (None,)
        self.ttl_config: StateTtlConfig | None = None
        self.former_names: tuple[str, ...] = ()

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Let the state expire when it is not accessed for some time: see :class:`StateTtlConfig`.

        Raises:
            ProgramError: it is no ``StateTtlConfig``.
        """
        if not isinstance(ttl_config, StateTtlConfig):
            raise ProgramError(
                f"the state {self.name!r}: enable_time_to_live() takes a StateTtlConfig, as in"
                f" StateTtlConfig('1 hour'), not {shorten(ttl_config)}"
            )
        self.ttl_config = ttl_config if ttl_config.is_enabled() else None

    def renamed_from(self, *names: str) -> Self:
        """Take over what a checkpoint holds under a former name, with its time-to-live; the kind stays the same.

        The first epoch rewrites all state of the operator, under the new name. So the former one may go once an
        epoch has been committed; it is of use as long as older checkpoints and savepoints may be started from.

        Args:
            names: former names, if there are several from as many versions of the program.

        Returns:
            The descriptor.

        Raises:
            ProgramError: one is no non-empty string, or the name of the state itself; (when it is declared) another
                state of the function has it.
            CheckpointMismatchError: (when it is restored) the checkpoint has both.

        Example:
            >>> ValueStateDescriptor("total", int).renamed_from("sum").former_names
            ('sum',)
        """
        for name in names:
            if not isinstance(name, str) or not name or name == self.name:
                raise ProgramError(
                    f"the state {self.name!r}: renamed_from() takes other names that it had, not {shorten(name)}"
                )
        self.former_names = (*self.former_names, *names)
        return self

    @property
    def declared_types(self) -> tuple[Any, ...]:
        """The declared types of values: of a map two; None where none is declared."""
        return tuple(given or self._type_argument(place) for given, place in zip(self._types, self._in_brackets))

    def _type_argument(self, place: int) -> Any:
        """Return a type in brackets, as in ``ValueStateDescriptor[float]("total")``; None: there is none."""
        given = getattr(getattr(self, "__orig_class__", None), "__args__", ())
        found = given[place] if place < len(given) else None
        is_type = isinstance(found, type) or get_origin(found) is not None
        return found if is_type and found is not Any else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"
