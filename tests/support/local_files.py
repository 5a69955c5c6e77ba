"""Spark's local files in tests without a process for each of them: ``LocalFiles.java``.

Hadoop without its native library starts ``chmod`` for each file that is written and ``readlink`` for each that is
renamed, some dozens in an epoch. Java finds the class and the settings that name it in a folder of the environment,
which ``python -m tests.support.class_archive`` makes; Janino, which Spark brings along, compiles it. `make test-all`
runs with Hadoop's own class.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
from pyspark.java_gateway import launch_gateway

_SOURCE = Path(__file__).with_name("LocalFiles.java")
_FOLDER = Path(sys.prefix) / "hadoop"
_SETTINGS = """<configuration>
  <property><name>fs.file.impl</name><value>pillarbox.tests.LocalFiles</value></property>
  <property>
    <name>fs.AbstractFileSystem.file.impl</name><value>pillarbox.tests.LocalFiles$Context</value>
  </property>
</configuration>
"""


def use_local_files() -> None:
    """Have each Java that this process and its children start use the class, if it exists."""
    if "PILLARBOX_LONG" not in os.environ and (_FOLDER / "core-site.xml").exists():
        os.environ.setdefault("HADOOP_CONF_DIR", str(_FOLDER))


def are_used() -> bool:
    """Tell whether Java processes of this one use the class."""
    return os.environ.get("HADOOP_CONF_DIR") == str(_FOLDER)


def write() -> None:
    """Compile the class and write the settings that name it, unless they are newer than Spark and than the source."""
    settings = _FOLDER / "core-site.xml"
    made_of = (_SOURCE, Path(pyspark.__file__).with_name("jars"))
    if settings.exists() and settings.stat().st_mtime > max(path.stat().st_mtime for path in made_of):
        return
    settings.unlink(missing_ok=True)
    gateway: Any = launch_gateway(popen_kwargs={"stderr": subprocess.DEVNULL})  # what Spark tells of its log
    jvm = gateway.jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    compiler.cook(_SOURCE.name, jvm.java.io.StringReader(_SOURCE.read_text()))
    for name, code in compiler.getBytecodes().items():
        path = _FOLDER.joinpath(*name.split(".")).with_suffix(".class")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(code))
    gateway.proc.stdin.close()  # which ends Java
    gateway.proc.wait()
    settings.write_text(_SETTINGS)
