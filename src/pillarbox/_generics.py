"""Type parameters of the public classes, for type checkers and readers only.

Type checkers see ``TypeVar`` with defaults (PEP 696). Python before 3.13 has no defaults, so at run time ``Generic``
ignores its parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Generic as Generic  # noqa: PLC0414 - for the others

    from typing_extensions import TypeVar
else:
    import typing
    from types import GenericAlias

    class Generic:
        __slots__ = ()

        def __class_getitem__(cls, parameters: object) -> GenericAlias:
            return GenericAlias(cls, parameters)

    def TypeVar(name: str, **options: Any) -> typing.TypeVar:
        return typing.TypeVar(name)


T = TypeVar("T", default=Any)
U = TypeVar("U", default=Any)
V = TypeVar("V", default=Any)
K = TypeVar("K", default=Any)
Acc = TypeVar("Acc", default=Any)
# For functions: input keys and records, emitted records.
Key = TypeVar("Key", contravariant=True, default=Any)
In = TypeVar("In", contravariant=True, default=Any)
In1 = TypeVar("In1", contravariant=True, default=Any)
In2 = TypeVar("In2", contravariant=True, default=Any)
Out = TypeVar("Out", covariant=True, default=Any)
# For functions: input windows. For contexts: the current window.
WindowT = TypeVar("WindowT", contravariant=True, default=Any)
WindowOut = TypeVar("WindowOut", covariant=True, default=Any)
# For streams: records and keys. For contexts: the current key.
KeyOut = TypeVar("KeyOut", covariant=True, default=Any)
T1 = TypeVar("T1", covariant=True, default=Any)
T2 = TypeVar("T2", covariant=True, default=Any)
