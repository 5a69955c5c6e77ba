"""Java processes of tests start from an archive of Spark's classes, which halves the time until their first result.

``python -m tests.support.class_archive`` runs a small program, and Java writes the classes that it loaded into the
folder of the environment. That takes a minute, so only `make test-all`, which starts dozens of Java processes, makes
the archive; `make test` uses one that exists. Java ignores an archive that is not of its own version and of the same
jars: tests need none, and other Sparks start without it.
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

# Java processes of tests do not live for long, or run hundreds of small queries: to compile well, to collect garbage in
# several threads, or to verify the classes of Spark's jars would take longer than it saves. With one level of compilers
# Java reserves 48 MiB for compiled code. Spark fills them, and then a tenth of the processor time goes into the search
# for code to throw away.
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m -XX:-UseCodeCacheFlushing"
    " -XX:MetaspaceSize=256m -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)

_ARCHIVE = Path(sys.prefix) / "classes.jsa"


def java_options() -> str:
    """Return the value of the variable ``JDK_JAVA_OPTIONS`` for tests.

    Java's launcher reads it, whoever starts it. Without its log Java says nothing of an archive that it cannot use.
    """
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={_ARCHIVE} -Xlog:disable" if _ARCHIVE.exists() else SHORT_LIVED


def write() -> None:
    """Write the archive, unless there is one that is newer than Spark."""
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
