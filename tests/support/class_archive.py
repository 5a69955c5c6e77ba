"""An archive of Spark's classes, which makes Java start twice as fast in tests.

``python -m tests.support.class_archive`` runs a small program, and Java writes the loaded classes into the folder of
the Python environment. This takes a minute, so only `make test-all` does it; `make test` uses an existing archive. Java
ignores archives of other Java versions or other jars.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from tests.support.sessions import environment_without_spark

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = _ROOT / "tests" / "versions" / "smoke.py"

# Java processes of tests are short-lived, or run hundreds of small queries: optimized compilation, parallel garbage
# collection and verification of Spark's classes would cost more time than they save. With one compiler level, Java
# reserves 48 MiB for compiled code. Spark fills them, and then a tenth of the processor time is spent on finding code
# to discard.
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m -XX:-UseCodeCacheFlushing"
    " -XX:MetaspaceSize=256m -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)

_ARCHIVE = Path(sys.prefix) / "classes.jsa"


def java_options() -> str:
    """Return the value of the environment variable ``JDK_JAVA_OPTIONS`` for tests.

    The options also turn off Java's log, so that Java does not report an unusable archive.
    """
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={_ARCHIVE} -Xlog:disable" if _ARCHIVE.exists() else SHORT_LIVED


def write() -> None:
    jars = Path(pyspark.__file__).with_name("jars")
    if _ARCHIVE.exists() and _ARCHIVE.stat().st_mtime > jars.stat().st_mtime:
        return
    beginning = _ARCHIVE.with_suffix(".begun")
    beginning.unlink(missing_ok=True)
    options = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={beginning} -Xlog:disable"
    path = os.pathsep.join(map(str, [_ROOT / "src", _ROOT]))
    with tempfile.TemporaryDirectory() as home:
        env = environment_without_spark(SPARK_LOCAL_IP="127.0.0.1", JDK_JAVA_OPTIONS=options, PYTHONPATH=path)
        ran = subprocess.run(
            [sys.executable, str(_PROGRAM), home], env=env, cwd=home, capture_output=True, text=True, check=False
        )
    if ran.returncode or not beginning.exists():
        raise SystemExit(f"Java wrote no archive of Spark's classes:\n{ran.stdout[-2000:]}{ran.stderr[-4000:]}")
    beginning.replace(_ARCHIVE)


if __name__ == "__main__":
    write()
