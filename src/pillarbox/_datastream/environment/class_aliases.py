"""Classes in state that have moved since a checkpoint was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox._errors import ProgramError, shorten

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ClassAliases"]


class ClassAliases:
    """The part of an environment that knows which classes have moved."""

    def __init__(self) -> None:
        self._moved: dict[tuple[str, str], type] = {}

    def add_class_alias(self, former: str, cls: type) -> Self:
        """Let state that was written with a class go on with the class that it is now.

        It holds for all state: values and keys, of declared types and pickled. The first epoch writes all state of an
        operator with such values anew, under the new name: the call may go once an epoch has been committed;
        ``pillarbox inspect`` shows the classes that a checkpoint names. It is of use as long as older checkpoints and
        savepoints may be started from.

        Args:
            former: module and qualified name of before, as in ``"shop.model:Order"``.
            cls: the class that stands for it now.

        Returns:
            The environment.

        Raises:
            ProgramError: ``former`` is no such text, or the name that ``cls`` has; or ``cls`` is no class, or another
                one than was given for ``former`` before.

        Example:
            >>> from fractions import Fraction
            >>> env.add_class_alias("shop.model:Share", Fraction) is env
            True
        """
        module, colon, name = former.partition(":") if isinstance(former, str) else ("", "", "")
        if not (module and colon and name):
            raise ProgramError(
                f"add_class_alias() takes the old module and name, as in 'shop.model:Order', not {shorten(former)}"
            )
        if not isinstance(cls, type):
            raise ProgramError(f"add_class_alias({former!r}, ...) takes the class itself, not {shorten(cls)}")
        if (module, name) == (cls.__module__, cls.__qualname__):
            raise ProgramError(f"add_class_alias({former!r}, ...): that is the name that the class has")
        if self._moved.get((module, name), cls) is not cls:
            raise ProgramError(f"add_class_alias({former!r}, ...) was called before, with another class")
        self._moved[module, name] = cls
        return self
