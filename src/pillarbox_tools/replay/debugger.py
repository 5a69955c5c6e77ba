"""Python's debugger (pdb), adapted to a replay: it stops only in user functions."""

from __future__ import annotations

import functools
import inspect
import pdb
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from pillarbox._errors import causes_of
from pillarbox._operators.functions.basic import Function
from pillarbox._task.stream_task import StreamTask
from pillarbox._tracebacks import is_user_code


class Debugger(pdb.Pdb):
    """A debugger that stops at the first line of each user function. When the function returns, the task continues."""

    def __init__(self, task: StreamTask) -> None:
        super().__init__()
        self._lines = {code: first_line(code) for code in _codes_of(task)}
        # Without breakpoints, ``continue`` would end the debugger.
        self.breaks.setdefault("<functions of the task>", [])

    def break_anywhere(self, frame: FrameType) -> bool:
        return frame.f_code in self._lines or bool(super().break_anywhere(frame))

    def break_here(self, frame: FrameType) -> bool:
        return self._lines.get(frame.f_code) == frame.f_lineno or bool(super().break_here(frame))

    def user_line(self, frame: FrameType) -> None:
        if is_user_code(frame.f_code.co_filename):
            super().user_line(frame)
        else:
            self.set_continue()


def look_back(error: BaseException) -> None:
    raised = [cause.__traceback__ for cause in causes_of(error) if cause.__traceback__ is not None]
    if raised:
        pdb.post_mortem(raised[-1])


def first_line(code: CodeType) -> int:
    lines = (line for *_, line in code.co_lines() if line is not None)
    return next((line for line in lines if line > code.co_firstlineno), code.co_firstlineno)


def _codes_of(task: StreamTask) -> Iterator[CodeType]:
    for operator in task.chain.operators:
        for value in vars(operator).values():
            for function in _functions_of(value):
                code = getattr(innermost(function), "__code__", None)
                if isinstance(code, CodeType) and is_user_code(code.co_filename):
                    yield code


def _functions_of(value: Any) -> Iterator[Any]:
    if not isinstance(value, Function):
        yield value
        return
    kinds = type(value).__mro__
    ours = {name for kind in kinds if kind.__module__.partition(".")[0] == "pillarbox" for name in vars(kind)}
    for name in ours - {"open", "close"}:
        if not name.startswith("__"):
            yield getattr(value, name, None)


def innermost(function: Any) -> Any:
    seen: set[int] = set()
    while id(function) not in seen:
        seen.add(id(function))
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif hasattr(function, "__func__"):
            function = function.__func__
        elif hasattr(function, "__code__"):
            # A closure over a single function counts as a decorator.
            cells = [cell.cell_contents for cell in function.__closure__ or () if _is_function(cell)]
            function = cells[0] if len(cells) == 1 else function
        elif hasattr(type(function).__call__, "__code__"):
            function = type(function).__call__
    return function


def _is_function(cell: Any) -> bool:
    try:
        return inspect.isfunction(cell.cell_contents)
    except ValueError:
        return False
