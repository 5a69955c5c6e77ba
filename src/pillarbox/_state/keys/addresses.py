"""Addresses of rows, which say whose they are: the key, or (key, namespace).

Addresses are hashable, and one of a namespace equals no key.
"""

from __future__ import annotations

from typing import Any

from pillarbox._errors import ProgramError, shorten


class _OfNamespace:
    """Marks addresses of namespaces: no key holds it."""


_OF_NAMESPACE = _OfNamespace()


def namespace_address(key: Any, namespace: Any) -> tuple[Any, Any, _OfNamespace]:
    """Return the address of the row of a key and a namespace: a tuple of both, and a third element."""
    return (key, namespace, _OF_NAMESPACE)


#: The address of the operator's own row, which is of no key: stored as namespace "operator" of the key None.
OPERATOR: tuple[Any, ...] = namespace_address(None, "operator")


def is_namespaced(address: Any) -> bool:
    """Return whether an address is one of a namespace, and not a key."""
    return type(address) is tuple and len(address) == 3 and address[2] is _OF_NAMESPACE


def format_address(address: Any) -> str:
    """Return an address for people."""
    if _is_operators(address):
        return "the operator itself"
    if is_namespaced(address):
        return f"{shorten(address[0])} in namespace {shorten(address[1])}"
    return shorten(address)


def format_owner(address: Any) -> str:
    """Return whose the row at an address is, for people."""
    return format_address(address) if _is_operators(address) else f"key {format_address(address)}"


def _is_operators(address: Any) -> bool:
    """Return whether an address is the operator's own; a key may compare in a way of its own, as numpy's values do."""
    return is_namespaced(address) and address == OPERATOR


def check_namespace(namespace: Any, operator: str) -> None:
    """Refuse what is no plain value: namespaces stand in checkpoints, and equal ones are one.

    Raises:
        ProgramError: it is no int, text, or tuple of such.
    """
    if not is_plain(namespace):
        raise ProgramError(
            f"operator {operator!r}: a namespace is an int, text, or a tuple of such, not {shorten(namespace)}"
            f" ({type(namespace).__name__})"
        )


def is_plain(namespace: Any) -> bool:
    """Return whether a namespace is an int, text, or a tuple of such."""
    kind = type(namespace)
    return kind is int or kind is str or (kind is tuple and all(map(is_plain, namespace)))
