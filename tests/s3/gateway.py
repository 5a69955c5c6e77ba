"""Versity's S3 gateway on this machine, which stores objects as files. ``scripts/setup.sh s3`` builds it."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

__all__ = ["BUCKET", "KEYS", "Gateway"]

VERSION = "1.8.0"
PROGRAM = Path(__file__).resolve().parents[2] / ".venvs" / f"versitygw-{VERSION}" / "versitygw"
BUCKET = "pillarbox"
#: The access key and the secret key of the gateway's only account.
KEYS = ("tests", "not-a-secret")
START_SECONDS = 100


class Gateway:
    """A gateway with one bucket.

    Attributes:
        objects: the folder with the bucket's objects as files.
    """

    def __init__(self, home: Path) -> None:
        assert PROGRAM.exists(), f"there is no {PROGRAM}: scripts/setup.sh s3 builds it"
        self.objects = home / "buckets" / BUCKET
        self.objects.mkdir(parents=True)
        (home / "metadata").mkdir()
        self._log = home / "log"
        for _ in range(5):
            if self._start(home):
                return
            # Another process may have taken the port meanwhile: then the gateway ends by itself.
            self.close()
        raise AssertionError(f"the gateway does not run: {self._log.read_text()[-4000:]}")

    def _start(self, home: Path) -> bool:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.endpoint: str = f"http://127.0.0.1:{port}"
        account = ["--access", KEYS[0], "--secret", KEYS[1]]
        # Not in extended attributes, which a file system need not have.
        backend = ["posix", "--sidecar", str(home / "metadata"), str(home / "buckets")]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(PROGRAM), "--port", f"127.0.0.1:{port}", *account, *backend],
                cwd=home,
                env={name: value for name, value in os.environ.items() if not name.startswith(("VGW_", "ROOT_"))},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        patience = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < patience:
            if _answers(port):
                return True
            time.sleep(0.05)
        return False

    def requests(self) -> int:
        return self._log.read_text().count(f"/{BUCKET}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
