"""Makes Hadoop's access to local files faster in tests: ``LocalFiles.java``, and no default settings of Hadoop.

Without its native library, Hadoop starts ``chmod`` for each written file and ``readlink`` for each renamed file. Spark
sends Hadoop's settings, about a thousand, with each job that reads files or has state. ``python -m
tests.support.local_files`` compiles the class with Spark's Janino. It writes settings that select the class, and empty
files of default settings, so that Hadoop uses the defaults in its code. `make test-all` runs with Hadoop's own class
and settings.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaGateway

_SOURCE = Path(__file__).with_name("LocalFiles.java")
_FOLDER = Path(sys.prefix) / "hadoop"
_DEFAULTS = _FOLDER / "defaults"
_SETTINGS = """<configuration>
  <property><name>fs.file.impl</name><value>pillarbox.tests.LocalFiles</value></property>
  <property>
    <name>fs.AbstractFileSystem.file.impl</name><value>pillarbox.tests.LocalFiles$Context</value>
  </property>
</configuration>
"""


def use_local_files() -> None:
    """Make later Java processes use ``LocalFiles.java``, and no default settings of Hadoop.

    Does nothing if the parent process or the user has set ``HADOOP_CONF_DIR``.
    """
    if {"PILLARBOX_LONG", "HADOOP_CONF_DIR"}.isdisjoint(os.environ) and (_FOLDER / "core-site.xml").exists():
        os.environ["HADOOP_CONF_DIR"] = str(_FOLDER)
        # The only place that Java searches before the jars.
        os.environ["JDK_JAVA_OPTIONS"] = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} -Xbootclasspath/a:{_DEFAULTS}"


def are_used() -> bool:
    return os.environ.get("HADOOP_CONF_DIR") == str(_FOLDER)


def write() -> None:
    pyspark = find_spec("pyspark")  # to import it would take longer than all of this
    assert pyspark is not None and pyspark.origin is not None
    jars = Path(pyspark.origin).with_name("jars")
    settings = _FOLDER / "core-site.xml"
    if settings.exists() and settings.stat().st_mtime > max(
        path.stat().st_mtime for path in (_SOURCE, Path(__file__), jars)
    ):
        return
    settings.unlink(missing_ok=True)
    [py4j] = jars.glob("py4j-*.jar")
    gateway: Any = JavaGateway.launch_gateway(
        jarpath=str(py4j), classpath=str(jars / "*"), java_path=None, die_on_exit=True, enable_auth=True
    )
    jvm = gateway.jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.ClassLoader.getSystemClassLoader())
    compiler.cook(_SOURCE.name, jvm.java.io.StringReader(_SOURCE.read_text()))
    for name, code in compiler.getBytecodes().items():
        path = _FOLDER.joinpath(*name.split(".")).with_suffix(".class")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(code))
    gateway.shutdown()
    gateway.java_process.stdin.close()  # which ends Java
    gateway.java_process.wait()
    _DEFAULTS.mkdir(exist_ok=True)
    for kind in ("core", "mapred", "yarn"):
        (_DEFAULTS / f"{kind}-default.xml").write_text("<configuration/>\n")
    settings.write_text(_SETTINGS)


if __name__ == "__main__":
    write()
