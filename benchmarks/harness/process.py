# SPDX-License-Identifier: Apache-2.0
"""A side of a comparison: an object in a separate process, whose methods are called by name.

Each side has its own Spark and Python workers, so that no side profits from another's warm-up. While one runs, the
others wait. Peers run in their own environments, so this file imports only Python's own modules.
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
    """A side has raised an error, or its process has ended. The message is its output."""


class Side:
    """A process that contains an object.

    Args:
        kind: the object's class or, if it cannot be imported here, ``module:name``.
        python: another environment's Python.
        source: the source tree from which it imports pillarbox, by default the same as this process.
        env: additional environment variables.
        arguments: the class's arguments, which JSON can express.
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
        # Spark's workers write much to standard error, which is shown only after a failure.
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
        with suppress(BrokenPipeError):  # the caller of ask() learns that the process has ended
            self._process.stdin.write(json.dumps(message, default=str) + "\n")
            self._process.stdin.flush()

    def ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Call a method of the object, and return its result.

        Raises:
            SideFailed: the method raised an error, or the process ended.
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
        """The process's pid."""
        return self._process.pid

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # already ended
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()


# -- pillarbox, here and in other processes --


def find_pillarbox() -> None:
    """Make the benchmarks and pillarbox importable in this process and Spark's workers, even if not installed."""
    places = [str(ROOT)]
    if importlib.util.find_spec("pillarbox") is None:
        sys.path.insert(0, str(SOURCE))
        places.append(str(SOURCE))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*places, os.environ.get("PYTHONPATH")]))


@contextmanager
def revision_source(revision: str) -> Iterator[Path]:
    """Extract another revision of this repository for the block, and yield its source tree."""
    with tempfile.TemporaryDirectory(prefix="bench-revision-") as directory:
        archive = ["git", "-C", str(ROOT), "archive", revision, "src"]
        with subprocess.Popen(archive, stdout=subprocess.PIPE) as tree:
            subprocess.run(["tar", "-x", "-C", directory], stdin=tree.stdout, check=True)
        if tree.returncode:
            raise SystemExit(f"git knows no revision {revision!r}")
        yield Path(directory) / "src"


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, so that they are still counted."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# -- in a side's process --


def carry_whole(module: Any) -> None:
    """Pickle a module's functions by value, so that Spark's workers need not import it."""
    if importlib.util.find_spec("pyspark") is not None:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(module)


def main() -> None:
    """Create the object that the first line describes, and answer each further line."""
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
