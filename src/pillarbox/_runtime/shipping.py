"""How a vertex travels to the process that runs its tasks: as bytes with a digest, unpickled for each task.

Classes that the user defined in the driver's ``__main__`` travel along and are put into the worker's ``__main__``, so
that records and state of such classes pickle by name there, and a restarted driver reads them back as its own.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass, field
from typing import Any

from pillarbox._errors import OperatorError, ProgramError, describe
from pillarbox._operators.budgets.ledger import BudgetScope, Ledger
from pillarbox._operators.frame.captured import BroadcastReferences, Pickled, load
from pillarbox._runtime.unpicklable import can_be_pickled, culprit_in
from pillarbox._task.vertex import Vertex

_SHIPPED = "__pillarbox_shipped__"


@dataclass(frozen=True)
class ShippedVertex:
    """A vertex as bytes.

    Attributes:
        digest: tells programs apart: a resident task is used again only for the same bytes.
        main_classes: the driver's ``__main__`` classes, pickled.
        broadcasts: the broadcast variables of Spark's in it.
        ledger: keeps the budgets of its tasks, or None. It has a secret of the plan.
    """

    number: int
    name: str
    digest: str
    payload: bytes
    main_classes: bytes
    broadcasts: BroadcastReferences = field(default_factory=BroadcastReferences, compare=False)
    ledger: Ledger | None = field(default=None, compare=False)

    def load(self) -> Vertex:
        """Return a new copy of the vertex.

        Raises:
            OperatorError: something in it cannot be imported here.
        """
        try:
            install_main_classes(self.main_classes)
            vertex: Vertex = load(self.payload)
        except Exception as error:
            raise OperatorError(
                f"the functions of {self.name!r} cannot be loaded in the worker: {describe(error)}; modules that"
                " they import must be installed there, or shipped with --py-files or, in a classic session,"
                " spark.addArtifacts(..., pyfile=True)"
            ) from error
        vertex.budget_scope = BudgetScope(self.ledger, vertex.partitions)
        return vertex


def ship(vertex: Vertex) -> ShippedVertex:
    """Return a vertex as bytes.

    Raises:
        ProgramError: a function holds something that cannot be pickled.
    """
    try:
        pickled = Pickled(vertex)
    except Exception as error:
        raise ProgramError(f"{_whose(vertex)} cannot be sent to the workers: {_why(vertex, error)}") from error
    classes = main_classes()
    digest = hashlib.sha256(pickled.payload + classes.payload).hexdigest()
    broadcasts = BroadcastReferences({**pickled.broadcasts, **classes.broadcasts}.values())
    return ShippedVertex(vertex.number, vertex.name, digest, pickled.payload, classes.payload, broadcasts)


def _why(vertex: Vertex, error: Exception) -> str:
    """Return why a vertex cannot be pickled, and what to do."""
    culprit = culprit_in(next((node.factory for node in vertex.nodes if not can_be_pickled(node.factory)), vertex))
    if culprit is None:
        why = "what cannot be pickled (connections, locks) is made in open(), not kept in the function"
        return f"{describe(error)}; {why}"
    named = f"it refers to {culprit.name}, a {type(culprit.value).__name__}"
    if culprit.is_of_spark:
        return (
            f"{named}, which only the driver has: collect() the rows that the function needs in the driver, and let it"
            " refer to the list or dict of them; or join the DataFrame with Spark before from_dataframe()"
        )
    return f"{describe(error)}; {named}, which is made in open(), not kept in the function"


def _whose(vertex: Vertex) -> str:
    """Return whose functions cannot be pickled, for people."""
    for node in vertex.nodes:
        if not can_be_pickled(node.factory):
            return f"the function of operator {node.name!r}"
    return f"the key function or partitioner after {vertex.name!r}"


def main_classes() -> Pickled:
    """Return the classes that the driver's ``__main__`` defines, pickled; those that cannot be are left out."""
    main = sys.modules.get("__main__")
    found: dict[str, Any] = {}
    for name, value in list(vars(main).items()) if main is not None else ():
        is_own = isinstance(value, type) and value.__module__ == "__main__" and value.__qualname__ == name
        if is_own and can_be_pickled(value):
            found[name] = value
    return Pickled(found)


def install_main_classes(pickled: bytes) -> None:
    """Put classes into this process's ``__main__``, unless it has others of these names."""
    main = sys.modules["__main__"]
    for name, value in load(pickled).items():
        if not hasattr(main, name) or getattr(getattr(main, name), _SHIPPED, False):
            setattr(value, _SHIPPED, True)
            setattr(main, name, value)
