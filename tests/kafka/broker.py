"""A Kafka broker on this machine, as one process for the whole test run.

Spark's Ivy downloads Kafka's jars into its usual cache.
"""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import time
from pathlib import Path

import pyspark

__all__ = ["Broker"]

VERSION = "4.1.0"
START_SECONDS = 300

_CACHE = Path.home() / ".ivy2.5.2" / "cache"
# Any sixteen bytes are the id of a cluster.
_CLUSTER = base64.urlsafe_b64encode(b"pillarbox-tests!").rstrip(b"=").decode()
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={home}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


class Broker:
    """A broker with its files in a folder."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True)
        java = [_java(), "-Xmx512m", "-cp", _class_path(home)]
        for attempt in range(5):
            if self._start(home / f"attempt {attempt}", java):
                return
            # Another process may have taken a port meanwhile: then the broker ends by itself.
            self.close()
        raise AssertionError(f"Kafka does not run: {self._log.read_text()[-4000:]}")

    def _start(self, home: Path, java: list[str]) -> bool:
        home.mkdir()
        port, controller = _free_ports(2)
        self.servers: str = f"127.0.0.1:{port}"
        settings, self._log = home / "server.properties", home / "log"
        settings.write_text(_PROPERTIES.format(port=port, controller=controller, home=home))
        _run([*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings)])
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [*java, "kafka.Kafka", str(settings)], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        patience = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < patience:
            if _answers(port):
                return True
            time.sleep(0.1)
        return False

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _class_path(home: Path) -> str:
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    result = home / "class-path"
    arguments = ["-dependency", "org.apache.kafka", "kafka_2.13", VERSION, "-confs", "default"]
    places = ["-cache", str(_CACHE), "-cachepath", str(result)]
    _run([_java(), "-cp", str(ivy), "org.apache.ivy.Main", *arguments, *places])
    return result.read_text().strip()


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)[-300:]}: {(done.stdout + done.stderr)[-4000:]}"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [socket.getsockname()[1] for socket in sockets]
    for sock in sockets:
        sock.close()
    return ports


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
