"""A wall clock that a test sets, and that only a program's tasks see."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

__all__ = ["SetClock", "is_seen", "set_clock"]


class SetClock:
    """Replaces Python's module ``time`` with a wall clock that is ahead by an offset.

    Args:
        file: a file with the setting's number and the offset (ms). A process that reads a new setting writes a marker
            file.
    """

    def __init__(self, file: str) -> None:
        self._file = Path(file)
        self._seen = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time_ns(self) -> int:
        try:
            text = self._file.read_text()
        except FileNotFoundError:
            return time.time_ns()
        number, milliseconds = text.split()
        if text != self._seen:
            self._seen = text
            _note_of(self._file, int(number)).touch()
        return time.time_ns() + int(milliseconds) * 1_000_000


def set_clock(file: Path, number: int, milliseconds: int) -> None:
    part = file.with_name(f"{file.name} part")
    part.write_text(f"{number} {milliseconds}")
    part.rename(file)


def is_seen(file: Path, number: int) -> bool:
    return _note_of(file, number).exists()


def _note_of(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name} seen {number}")
