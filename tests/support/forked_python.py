"""A fast-starting replacement for the Python command, because Spark starts hundreds of Python processes in tests.

Spark runs this program instead of Python, so that not every worker imports pandas, PyArrow, PySpark and pillarbox. For
``-m MODULE``, it passes its arguments, environment, folder and standard streams to a server that has imported these
packages and forks a process. With other arguments, it runs Python itself. The program exits when the forked process
exits, with the same exit code. If it is terminated, it terminates that process.
"""

from __future__ import annotations

import gc
import marshal
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["JVM", "forked_python"]

_ROOT = Path(__file__).resolve().parents[2]

# The variable of a forked process with the JVM that has started it: its parent is the server.
JVM = "PILLARBOX_TESTS_JVM"

# All that it imports, it imports in each start.
_PROGRAM = """#!{python} -IS
import marshal, os, socket, sys

if sys.argv[1:2] != ["-m"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    asked = marshal.dumps((sys.argv[2:], {{**os.environ, {jvm!r}: str(os.getppid())}}, os.getcwd()))
    socket.send_fds(server, [len(asked).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(asked)
    code = server.recv(1)
sys.exit(code[0] if code else 1)
"""


@contextmanager
def forked_python() -> Iterator[str]:
    """Run a server during the block, and yield the path of the program that replaces Python."""
    with tempfile.TemporaryDirectory(prefix="pillarbox-") as folder:  # a socket's path has to be short
        address, program = f"{folder}/server", Path(folder, "python")
        program.write_text(_PROGRAM.format(python=sys.executable, address=address, jvm=JVM))
        program.chmod(0o755)
        # Objects have the hashes that they have in workers which Spark starts.
        env = {**os.environ, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked_python", address],
            cwd=_ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert server.stdin is not None and server.stdout is not None
        try:
            assert server.stdout.readline(), "the server has died"
            yield str(program)
        finally:
            server.stdin.close()
            server.wait()
            server.stdout.close()


class _Server:
    """Forks a process for each program that connects, until the server's standard input is closed.

    A forked process keeps the connection to its program open until the process exits.
    """

    def __init__(self, address: str) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(address)
        self._listening.listen(128)
        self._ended, wakeup = socket.socketpair()
        for end in (self._ended, wakeup):
            end.setblocking(False)
        self._wakeup = wakeup
        self._processes: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> str | None:
        signal.set_wakeup_fd(self._wakeup.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for file in (0, self._listening, self._ended):
            self._selector.register(file, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == 0:
                    self._terminate(list(self._processes))
                    return None
                if key.fileobj is self._listening:
                    module = self._fork()
                    if module is not None:
                        return module
                elif key.fileobj is self._ended:
                    self._reap()
                else:  # a program has ended before its process
                    for pid, program in self._processes.items():
                        if program is key.fileobj:
                            self._selector.unregister(program)
                            self._terminate([pid])

    def _fork(self) -> str | None:
        program, _ = self._listening.accept()
        try:
            head, files, _, _ = socket.recv_fds(program, 4, 3)
            asked = program.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
            arguments, environment, folder = marshal.loads(asked)
        except (OSError, EOFError, ValueError):  # it was killed meanwhile
            program.close()
            return None
        pid = os.fork()
        if pid == 0:
            program.close()
            self._leave()
            return _become(files, arguments, environment, folder)
        for file in files:
            os.close(file)
        self._processes[pid] = program
        self._selector.register(program, selectors.EVENT_READ)
        return None

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            while self._ended.recv(4096):
                pass
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                code = os.waitstatus_to_exitcode(status)
                program = self._processes.pop(pid)
                with suppress(OSError):
                    program.sendall(bytes([code if code >= 0 else 128 - code]))
                with suppress(KeyError):
                    self._selector.unregister(program)
                program.close()

    def _terminate(self, processes: list[int]) -> None:
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _leave(self) -> None:
        """Close the server's resources in a forked process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for file in (self._listening, self._ended, self._wakeup, *self._processes.values()):
            file.close()


def _become(files: list[int], arguments: list[str], environment: dict[str, str], folder: str) -> str:
    for index, file in enumerate(files):
        os.dup2(file, index)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if "PYTHONUNBUFFERED" in environment:
        streams: list[Any] = [sys.stdout, sys.stderr]
        for stream in streams:
            stream.reconfigure(write_through=True)
    paths = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:] = dict.fromkeys([*paths, *sys.path])
    module, *sys.argv[1:] = arguments
    return module


def _main() -> None:
    server = _Server(sys.argv[1])
    print("listening", flush=True)

    import tests.support.daemon  # noqa: F401

    gc.collect()
    gc.freeze()
    module = server.serve()
    if module is not None:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
