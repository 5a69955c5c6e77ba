"""Wrong uses that fail on the local runtime, or while the program is built: message, frames and time of the error."""

from __future__ import annotations

import logging
import os
import signal
import threading
import traceback

import pytest

import pillarbox
from pillarbox import MapFunction, OperatorError, PillarboxError, ProgramError, StreamExecutionEnvironment
from pillarbox._errors import causes_of, describe
from tests.errors.wrong_joins import JOIN_BUILDS
from tests.errors.wrong_settings import SETTINGS_BUILDS
from tests.errors.wrong_two_inputs import TWO_INPUT_BUILDS, TWO_INPUT_RUNS
from tests.errors.wrong_uses import BUILDS, RUNS, Build, Run, rows
from tests.errors.wrong_windows import WINDOW_BUILDS, WINDOW_RUNS

PACKAGE = os.path.dirname(pillarbox.__file__)
LINES = 8


def check(text: str, says: tuple[str, ...]) -> None:
    first = "\n".join(text.splitlines()[:LINES])
    missing = [words for words in says if words not in first]
    assert not missing, f"{missing} not in the first {LINES} lines of:\n{text[:3000]}"
    assert PACKAGE not in text, text[:3000]


@pytest.mark.parametrize(
    "case",
    [*BUILDS, *SETTINGS_BUILDS, *WINDOW_BUILDS, *TWO_INPUT_BUILDS, *JOIN_BUILDS],
    ids=lambda case: case.name,
)
def test_refused_while_it_is_built(case: Build) -> None:
    with pytest.raises(ProgramError) as caught:
        case.program(StreamExecutionEnvironment())
    check(str(caught.value), case.says)


@pytest.mark.parametrize("case", [*RUNS, *WINDOW_RUNS, *TWO_INPUT_RUNS], ids=lambda case: case.name)
def test_fails_at_run(case: Run) -> None:
    stream = case.program(rows(StreamExecutionEnvironment()))
    with pytest.raises(case.kind) as caught:
        stream.execute_and_collect()
    check(str(caught.value), case.says)
    assert len(str(caught.value)) < 3000
    if case.frame:
        frames = traceback.format_exception(type(caught.value), caught.value, caught.value.__traceback__)
        assert f", in {case.frame}\n" in "".join(frames)
    cause = caught.value.__cause__
    if case.frame and cause is not None and isinstance(caught.value, PillarboxError):
        assert PACKAGE not in "".join(traceback.format_exception(type(cause), cause, cause.__traceback__))


def test_ctrl_c_interrupts_the_local_runtime() -> None:
    def interrupted(value: object) -> object:
        # Like a terminal. The handler runs in the main thread, which runs the function.
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(60)
        return value

    # A shell starts background processes with this signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt, match=r"^operator 'map: interrupted' was interrupted at the record Row"):
            rows(StreamExecutionEnvironment()).map(interrupted).execute_and_collect()
    finally:
        signal.signal(signal.SIGINT, before)


class _Closes(MapFunction):
    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def map(self, value):
        return 1 // (value.id - 3) if self.fails else 1

    def close(self):
        raise ConnectionError("the line is dead")


def test_an_error_in_close_is_raised_where_nothing_else_failed() -> None:
    with pytest.raises(OperatorError, match=r"operator 'op' failed in close\(\): ConnectionError: the line is dead"):
        rows(StreamExecutionEnvironment()).map(_Closes(False)).name("op").execute_and_collect()


def test_an_error_in_close_is_told_beside_the_first_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "pillarbox"), pytest.raises(OperatorError, match="ZeroDivisionError") as caught:
        rows(StreamExecutionEnvironment()).map(_Closes(True)).name("op").execute_and_collect()
    messages = " ".join([caplog.text, *getattr(caught.value, "__notes__", ())])
    assert "operator 'op' failed in close(): ConnectionError: the line is dead" in messages


def test_describe() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class Group(Exception):
        exceptions = (ValueError("first"), KeyError("second"))

    assert describe(ValueError("in\n two  lines")) == "ValueError: in two lines"
    assert describe(ValueError()) == "ValueError"
    assert describe(Mute()) == "Mute: <its message raised RuntimeError>"
    assert len(describe(ValueError("x" * 10_000_000))) < 1100
    assert describe(Group("both")) == "Group: both [ValueError: first; KeyError: 'second']"


def test_causes() -> None:
    class Group(Exception):
        exceptions = (ValueError("first"), KeyError("second"))

    def raised(error: Exception, cause: BaseException | None = None, *, is_tracked: bool = True) -> Exception:
        try:
            try:
                raise MemoryError("handled")
            except MemoryError:
                if cause is not None or not is_tracked:
                    raise error from cause
                raise error  # noqa: B904
        except Exception as caught:
            return caught

    def names(error: BaseException) -> list[str]:
        return sorted(type(cause).__name__ for cause in causes_of(error))

    assert names(raised(OSError())) == ["MemoryError", "OSError"]
    assert names(raised(OSError(), raised(KeyError()))) == ["KeyError", "MemoryError", "OSError"]
    assert names(raised(OSError(), is_tracked=False)) == ["OSError"]
    assert names(raised(Group())) == ["Group", "KeyError", "MemoryError", "ValueError"]
    itself = OSError()
    assert causes_of(raised(itself, itself)) == [itself]


def test_the_operator_that_knew_first_is_right() -> None:
    error = ProgramError("it cannot be")
    error.at(operator="inner", record=1)
    error.at(operator="outer", record=2, key="k")
    error.at(subtask=4)
    assert str(error) == "it cannot be\n  (operator 'inner', subtask 4, record 1)"
