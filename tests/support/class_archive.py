"""Java processes of tests start from an archive of Spark's classes, which halves the time until their first result.

``python -m tests.support.class_archive [PLACE]`` has a small program run, and Java writes the classes that it loaded
into the folder of the environment, or into PLACE, a folder with another Spark. It takes half a minute, and nothing when
the archive is newer than that Spark. Java ignores an archive that is not of its own version and of the same jars, so
tests need none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.sessions import environment_without_spark

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = _ROOT / "tests" / "versions" / "smoke.py"

# Java processes of tests do not live for long, or run hundreds of small queries: to compile well, or to collect garbage
# in several threads, would take longer than it saves.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def _archive(place: Path) -> Path:
    return place / "classes.jsa"


def java_options(place: Path = Path(sys.prefix)) -> str:
    """Return what variable ``JDK_JAVA_OPTIONS`` has for tests with the Spark in `place`.

    Java's launcher reads it, whoever starts it. Without its log Java says nothing of an archive that it cannot use.
    """
    archive = _archive(place)
    return f"{_SHORT_LIVED} -XX:SharedArchiveFile={archive} -Xlog:disable" if archive.exists() else _SHORT_LIVED


def write(place: Path) -> None:
    """Write the archive of the Spark in `place`, unless it is there."""
    jars = next(place.glob("**/pyspark/jars"))
    archive = _archive(place)
    if archive.exists() and archive.stat().st_mtime > jars.stat().st_mtime:
        return
    beginning = archive.with_suffix(".begun")
    beginning.unlink(missing_ok=True)
    options = f"{_SHORT_LIVED} -XX:ArchiveClassesAtExit={beginning} -Xlog:disable"
    path = os.pathsep.join(map(str, [jars.parents[1], _ROOT / "src", _ROOT]))
    with tempfile.TemporaryDirectory() as home:
        env = environment_without_spark(SPARK_LOCAL_IP="127.0.0.1", JDK_JAVA_OPTIONS=options, PYTHONPATH=path)
        ran = subprocess.run(
            [sys.executable, str(_PROGRAM), home], env=env, cwd=home, capture_output=True, text=True, check=False
        )
    if ran.returncode or not beginning.exists():
        raise SystemExit(f"no archive of Spark's classes in {place}:\n{ran.stdout[-2000:]}{ran.stderr[-4000:]}")
    beginning.replace(archive)


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else sys.prefix).absolute())
