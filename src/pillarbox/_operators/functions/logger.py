"""The logger of a task: each line says of which operator, subtask and epoch it is."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from pillarbox._errors import place_of_task

if TYPE_CHECKING:
    from pillarbox._operators.frame.operator import OperatorContext

    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter  # not to be subscripted on Python 3.10


class TaskLogger(_Adapter):
    """A logger that adds its operator and subtask. Any thread may use it; the epoch is the running one."""

    def __init__(self, logger: logging.Logger, context: OperatorContext) -> None:
        super().__init__(logger, {})
        self._context = context

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Put the place after the message, and into fields of the record; fields of the call's own stay."""
        context = self._context
        place = {"operator": context.name, "subtask": context.subtask, "epoch": context.epoch}
        kwargs["extra"] = {**place, **(kwargs.get("extra") or {})}
        # The message may be a format: what a name has of it is not meant.
        said = place_of_task(context.name, context.subtask, context.epoch).replace("%", "%%")
        return f"{msg} {said}", kwargs
