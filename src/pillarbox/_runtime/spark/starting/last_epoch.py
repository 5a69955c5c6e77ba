"""The epoch in which event time ends, as a query that is started is told of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pillarbox._errors import describe
from pillarbox._runtime.spark.tasks.residency import DRAIN_PROPERTY

if TYPE_CHECKING:
    from pillarbox._runtime.spark.checkpoint.description import Description

__all__ = ["drain_setting", "last_epoch"]

_log = logging.getLogger("pillarbox")

_last_epoch: ContextVar[int | None] = ContextVar("pillarbox_last_epoch", default=None)


@contextmanager
def last_epoch(number: int) -> Iterator[None]:
    """Let event time end in a micro-batch of the queries that this thread starts meanwhile."""
    token = _last_epoch.set(number)
    try:
        yield
    finally:
        _last_epoch.reset(token)


def drain_setting(description: Description) -> dict[str, str]:
    """Return the setting that says which micro-batch is the last one, if one is, or is to be run again as such."""
    number = _last_epoch.get()
    try:
        if number is None and description.last_epoch_begun is None:
            description.forget_last_epoch()
            if description.is_drained():
                _log.warning(
                    "checkpoint %s was drained: event time has ended in it, so all further records are late;"
                    " start from a new checkpoint",
                    description,
                )
            return {}
        number = description.last_epoch_begun if number is None else number
    except Exception as error:
        _log.warning("checkpoint %s: whether it was drained is not known: %s", description, describe(error))
    return {} if number is None else {DRAIN_PROPERTY: str(number)}
