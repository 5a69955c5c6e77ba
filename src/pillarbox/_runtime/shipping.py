"""Ships vertices (chains of operators) to worker processes as bytes.

Also ships the classes in the driver's ``__main__``, so that workers can pickle their instances by name.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass, field
from typing import Any

from pillarbox._errors import OperatorError, ProgramError, describe
from pillarbox._operators.budgets.ledger import Ledger, LedgerScope
from pillarbox._operators.frame.captured import CapturedBroadcasts, CapturedObject, load
from pillarbox._runtime.unpicklable import can_be_pickled, culprit_in
from pillarbox._task.vertex import Vertex

_SHIPPED = "__pillarbox_shipped__"


@dataclass(frozen=True)
class ShippedVertex:
    """A vertex as bytes.

    Attributes:
        digest: a digest of the bytes. A worker reuses a task only if the digest is the same.
        ledger: the address where its tasks book requests on budgets, or None. Contains a secret.
    """

    number: int
    name: str
    digest: str
    payload: bytes
    main_classes: bytes
    broadcasts: CapturedBroadcasts = field(default_factory=CapturedBroadcasts, compare=False)
    ledger: Ledger | None = field(default=None, compare=False)

    def load(self) -> Vertex:
        try:
            install_main_classes(self.main_classes)
            vertex: Vertex = load(self.payload)
        except Exception as error:
            raise OperatorError(
                f"the functions of {self.name!r} cannot be loaded in Spark's Python worker: {describe(error)}. Install"
                " the modules that they import on the workers, or ship them with --py-files or, in a classic session,"
                " spark.addArtifacts(..., pyfile=True)"
            ) from error
        vertex.budget_scope = LedgerScope(self.ledger, vertex.partitions)
        return vertex


def ship(vertex: Vertex) -> ShippedVertex:
    try:
        pickled = CapturedObject(vertex)
    except Exception as error:
        raise ProgramError(f"{_whose(vertex)} cannot be pickled for the workers: {_why(vertex, error)}") from error
    classes = main_classes()
    digest = hashlib.sha256(pickled.payload + classes.payload).hexdigest()
    broadcasts = CapturedBroadcasts({**pickled.broadcasts, **classes.broadcasts}.values())
    return ShippedVertex(vertex.number, vertex.name, digest, pickled.payload, classes.payload, broadcasts)


def _why(vertex: Vertex, error: Exception) -> str:
    culprit = culprit_in(next((node.factory for node in vertex.nodes if not can_be_pickled(node.factory)), vertex))
    if culprit is None:
        why = "create connections, locks and other unpicklable objects in open()"
        return f"{describe(error)}; {why}"
    named = f"it refers to {culprit.name}, a {type(culprit.value).__name__}"
    if culprit.is_of_spark:
        return (
            f"{named}, which exists only in the driver: collect() the rows that the function needs, and use the list or"
            " a dict of them in the function; or join the DataFrame with Spark before from_dataframe()"
        )
    return f"{describe(error)}; {named}: create it in open() instead"


def _whose(vertex: Vertex) -> str:
    for node in vertex.nodes:
        if not can_be_pickled(node.factory):
            return f"the function of operator {node.name!r}"
    return f"the key function or partitioner after {vertex.name!r}"


def main_classes() -> CapturedObject:
    main = sys.modules.get("__main__")
    classes: dict[str, Any] = {}
    for name, value in list(vars(main).items()) if main is not None else ():
        is_own = isinstance(value, type) and value.__module__ == "__main__" and value.__qualname__ == name
        if is_own and can_be_pickled(value):
            classes[name] = value
    return CapturedObject(classes)


def install_main_classes(pickled: bytes) -> None:
    """Install classes in this process's ``__main__``, unless it already defines their names."""
    main = sys.modules["__main__"]
    for name, value in load(pickled).items():
        if not hasattr(main, name) or getattr(getattr(main, name), _SHIPPED, False):
            setattr(value, _SHIPPED, True)
            setattr(main, name, value)
