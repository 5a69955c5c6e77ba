# SPDX-License-Identifier: Apache-2.0
"""A side of a comparison: an object in a process of its own, whose methods are asked by name.

Each side has its own Spark and its own Python workers, so that neither lives on what the other has warmed up; while one
is asked the others wait. Peers run in environments of their own, so this file imports nothing but Python's own modules.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src"

_ANSWER = "@answer "
_PR_SET_CHILD_SUBREAPER = 36


class SideFailed(SystemExit):
    """A side that raised an error, or whose process has ended; what it said is the message."""


class Side:
    """A process with an object in it.

    Args:
        kind: the object's class, or where it is, as ``module:name``, if it cannot be imported here.
        python: another environment's Python.
        source: the source tree whose pillarbox it imports; by default the one that this process imports.
        env: more environment variables.
        arguments: of the class; JSON carries them.
    """

    def __init__(
        self,
        kind: Callable[..., Any] | str,
        *,
        python: Path | None = None,
        source: Path | None = None,
        env: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> None:
        class_name = kind if isinstance(kind, str) else f"{kind.__module__}:{kind.__name__}"
        path = filter(None, [str(source or ""), str(ROOT), os.environ.get("PYTHONPATH")])
        # Spark's workers tell much on their standard error; it is of interest when something fails.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(python or sys.executable), "-m", "benchmarks.harness.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **(env or {})},
        )
        self._send({"kind": class_name, "arguments": arguments})

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # whoever waits for the answer hears that the process has ended
            self._process.stdin.write(json.dumps(message, default=str) + "\n")
            self._process.stdin.flush()

    def ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Call a method of the object, and return what it returned.

        Raises:
            SideFailed: it raised an error, or the process ended.
        """
        self._send({"method": method, "arguments": arguments})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_ANSWER):
                answer: dict[str, Any] = json.loads(line[len(_ANSWER) :])
                if "error" in answer:
                    raise SideFailed(answer["error"])
                return answer
        status = self._process.wait()
        self._errors.seek(0)
        raise SideFailed(f"{self._errors.read()[-4000:]}\na side of the benchmark ended with {status}")

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def close(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()


# -- pillarbox, here and in other processes --


def find_pillarbox() -> None:
    """Let this process and Spark's workers import the benchmarks, and pillarbox also where it is not installed."""
    places = [str(ROOT)]
    if importlib.util.find_spec("pillarbox") is None:
        sys.path.insert(0, str(SOURCE))
        places.append(str(SOURCE))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*places, os.environ.get("PYTHONPATH")]))


@contextmanager
def revision_source(revision: str) -> Iterator[Path]:
    """Make the source tree of another revision of this repository available for a while."""
    with tempfile.TemporaryDirectory(prefix="bench-revision-") as directory:
        archive = ["git", "-C", str(ROOT), "archive", revision, "src"]
        with subprocess.Popen(archive, stdout=subprocess.PIPE) as tree:
            subprocess.run(["tar", "-x", "-C", directory], stdin=tree.stdout, check=True)
        if tree.returncode:
            raise SystemExit(f"git knows no revision {revision!r}")
        yield Path(directory) / "src"


def adopt_orphans() -> None:
    """Let processes below this one whose parents have ended stay below it: else they would be nobody's."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# -- in a side's process --


def carry_whole(module: Any) -> None:
    """Have Spark's workers get the functions of a module as they are, so that they need not import it."""
    if importlib.util.find_spec("pyspark") is not None:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(module)


def main() -> None:
    """Make the object that the first line asks for, and answer each other line."""
    adopt_orphans()
    request = json.loads(sys.stdin.readline())
    module, _, name = request["kind"].partition(":")
    imported = importlib.import_module(module)
    carry_whole(imported)
    side = getattr(imported, name)(**request["arguments"])
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = getattr(side, question["method"])(**question["arguments"])
        except (Exception, SystemExit):
            answer = {"error": traceback.format_exc()[-4000:]}
        print(_ANSWER + json.dumps(answer or {}), flush=True)
    if hasattr(side, "close"):
        side.close()


if __name__ == "__main__":
    main()
