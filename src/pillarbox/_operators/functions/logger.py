"""A task's logger."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from pillarbox._errors import place_of_task

if TYPE_CHECKING:
    from pillarbox._operators.frame.operator import OperatorContext

    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class TaskLogger(_Adapter):
    """A logger that adds the operator, the subtask and the current epoch to messages. Thread-safe."""

    def __init__(self, logger: logging.Logger, context: OperatorContext) -> None:
        super().__init__(logger, {})
        self._context = context

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the task to the message and to the log record's fields, unless the caller has set them."""
        context = self._context
        task = {"operator": context.name, "subtask": context.subtask, "epoch": context.epoch}
        kwargs["extra"] = {**task, **(kwargs.get("extra") or {})}
        # The message may be a format string, but the operator's name is not.
        suffix = place_of_task(context.name, context.subtask, context.epoch).replace("%", "%%")
        return f"{msg} {suffix}", kwargs
