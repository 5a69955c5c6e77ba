"""The user's specification of windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._operators.windowing.api.assigner import TimedAssigner, WindowAssigner
from pillarbox._operators.windowing.api.count_windows import CountWindowAssigner, GlobalWindows
from pillarbox._operators.windowing.api.functions import ProcessAllWindowFunction, ProcessWindowFunction
from pillarbox._operators.windowing.api.triggers import Trigger
from pillarbox._operators.windowing.contents import FoldedContents, ListContents


@dataclass(frozen=True)
class WindowProgram:
    """The user's specification of windows."""

    assigner: WindowAssigner
    trigger: Trigger
    contents: ListContents | FoldedContents
    function: Any = None
    opened: tuple[Any, ...] = field(default=())
    lateness: int = 0
    late_tag: OutputTag[Any] | None = None

    @property
    def depends_on(self) -> dict[str, str]:
        """The windows' properties, which must be the same for a program to resume from stored state.

        Time windows on the same clock are compatible, because each window's end is stored. User-defined assigners are
        not checked.
        """
        assigner, fold = self.assigner, self.contents.fold if isinstance(self.contents, FoldedContents) else None
        properties: dict[str, str] = {}
        if isinstance(assigner, CountWindowAssigner):
            slide = "" if assigner.slide == assigner.size else f", one each {assigner.slide}"
            properties["windows"] = f"windows of {assigner.size} records{slide}"
        elif isinstance(assigner, GlobalWindows):
            properties["windows"] = "a window for each key"
        elif isinstance(assigner, TimedAssigner):
            properties["windows"] = f"windows of {'event' if assigner.is_event_time() else 'processing'} time"
        if fold is not None and fold.name is not None:
            properties["fold"] = fold.name
        return properties

    @property
    def clears(self) -> bool:
        return isinstance(self.function, (ProcessWindowFunction, ProcessAllWindowFunction)) and (
            type(self.function).clear not in (ProcessWindowFunction.clear, ProcessAllWindowFunction.clear)
        )
