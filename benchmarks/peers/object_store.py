# SPDX-License-Identifier: Apache-2.0
"""A local object store that counts requests: moto's server, in its own environment.

Spark accesses it with Hadoop's S3A, whose jars Spark downloads from Maven Central.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from benchmarks.peers.environments import MOTO

BUCKET = "checkpoints"
START_SECONDS = 60
_REQUEST = re.compile(rb"^(?:GET|PUT|POST|HEAD|DELETE) ", re.MULTILINE)

_SERVER = """
import os
import sys
import waitress
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

store = DomainDispatcherApplication(create_backend_app)

def counted(environ, start_response):
    line = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']} {environ['QUERY_STRING']}"
    os.write(1, f"{line}\\n".encode())  # in one piece, whichever thread writes
    return store(environ, start_response)

waitress.serve(counted, listen=f"127.0.0.1:{sys.argv[1]}", threads=8)
"""

# The SDK versions in the builds of each PySpark's Hadoop version.
_HADOOP = {"3.5.0": "2.35.4", "3.4.2": "2.29.52", "3.4.1": "2.24.6"}


class Gateway:
    """An object store with a bucket, which logs a line for each request.

    Attributes:
        url: its address for clients.
        log: the log file.

    Raises:
        NotInstalled: pip cannot install moto.
    """

    def __init__(self, home: Path) -> None:
        python = MOTO.make()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = home / "requests.log"
        with self.log.open("wb") as output:
            self._process = subprocess.Popen([str(python), "-c", _SERVER, str(port)], stdout=output, stderr=output)
        patience = time.monotonic() + START_SECONDS
        while True:
            try:
                urllib.request.urlopen(urllib.request.Request(f"{self.url}/{BUCKET}", method="PUT")).close()
                break
            except OSError:
                if time.monotonic() > patience or self._process.poll() is not None:
                    sys.exit(f"the object store does not run: {self.log.read_text()[-2000:]}")
                time.sleep(0.1)

    def close(self) -> None:
        """Stop the store."""
        self._process.kill()
        self._process.wait()


def requests_in(log: Path) -> int:
    """Return the number of requests so far."""
    return len(_REQUEST.findall(log.read_bytes()))


def s3_settings(url: str) -> dict[str, str]:
    """Return a session's settings for access to the store, with ``__`` for dots."""
    import pyspark

    jars = next(Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar"))
    hadoop = jars.stem.removeprefix("hadoop-client-api-")
    sdk = _HADOOP.get(hadoop)
    if sdk is None:
        sys.exit(f"{__file__} does not know which AWS SDK belongs to Hadoop {hadoop}: add it to _HADOOP")
    parts = ("s3", "s3-transfer-manager", "sts", "apache-client")
    packages = [f"org.apache.hadoop:hadoop-aws:{hadoop}", *(f"software.amazon.awssdk:{part}:{sdk}" for part in parts)]
    return {
        "spark__jars__packages": ",".join(packages),
        # The bundle contains all of Amazon's services (700 MB).
        "spark__jars__excludes": "software.amazon.awssdk:bundle,org.apache.hadoop:hadoop-common,"
        "software.amazon.encryption.s3:amazon-s3-encryption-client-java",
        "spark__hadoop__fs__s3a__endpoint": url,
        "spark__hadoop__fs__s3a__endpoint__region": "us-east-1",
        "spark__hadoop__fs__s3a__path__style__access": "true",
        "spark__hadoop__fs__s3a__access__key": "any",
        "spark__hadoop__fs__s3a__secret__key": "any",
        "spark__hadoop__fs__s3a__connection__ssl__enabled": "false",
    }
