"""A golden savepoint of the logs in other golden checkpoints: ``python -m tests.data.make_savepoint``.

It contains state of all kinds, typed and pickled, carried requests, columnar aggregates, and joins.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

from pillarbox._runtime.local import Savepoint
from pillarbox._state.savepoint.files import write_savepoint
from pillarbox._state.savepoint.manifest import FORMAT, Sources
from tests.data.make_checkpoint import HERE, load

__all__ = ["PATH", "logs", "unpack"]

PATH = HERE / f"savepoint-format-{FORMAT}.zip"
CHECKPOINTS = ("checkpoint", "types", "ttl", "columns", "join")
EPOCH = 13


def logs() -> Savepoint:
    return {path: store for name in CHECKPOINTS for path, store in load(HERE / f"{name}-format-2.zip").items()}


def unpack(path: Path, folder: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)


if __name__ == "__main__":
    seen = ('{"path":"file:///in/part-0.parquet","timestamp":1700000000000,"batchId":0}',)
    sources = Sources(("v1", '{"batchWatermarkMs":0}', '{"logOffset":0}'), {"0": seen})
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary) / "savepoint"
        write_savepoint(home, logs(), epoch=EPOCH, sources=sources, checkpoint="/checkpoint")
        with zipfile.ZipFile(PATH, "x", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(home.rglob("*")):
                if path.is_file():
                    archive.write(path, path.relative_to(home))
    print(f"{PATH}: {PATH.stat().st_size} bytes", file=sys.stderr)
