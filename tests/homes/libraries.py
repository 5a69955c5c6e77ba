"""Effects of libraries on the process that runs a function. ``docs/execution.md`` shows this table."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import decimal
import faulthandler
import gc
import importlib
import io
import json
import locale
import logging
import multiprocessing
import os
import queue
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pillarbox import KeyedProcessFunction
from pillarbox._runtime.spark.homes.settings import MODE, MOST
from tests.runtime.spark_of_dicts import Query, keyed_query

PLACES = ("workers", "homes", "shared homes", "Spark Connect")
WORKS = "works"
EPOCHS = 3


class Entry(NamedTuple):
    """A library or call, and its effects in each kind of process.

    Attributes:
        begin: called in ``open()`` with an empty folder. Returns the argument for ``look``.
        look: called for each record. Returns whether everything is still as ``begin`` left it.
        places: kind of process -> effect. In all other kinds, the effect is ``otherwise``.
        error: part of the error message in a kind of process that refuses the call.
        at_the_end: whether the process writes a file ``end`` when it exits.
    """

    name: str
    begin: Callable[[Path], Any]
    look: Callable[[Any], Any]
    places: dict[str, str] = {}
    otherwise: str = WORKS
    error: str = ""
    at_the_end: bool = False

    def in_place(self, setting: str) -> str:
        return self.places.get(setting, self.otherwise)


def _nothing(folder: Path) -> None:
    pass


_seen: list[int] = []


def _handler(folder: Path) -> None:
    signal.signal(signal.SIGUSR1, lambda number, frame: _seen.append(number))


def _is_handled(_: None) -> bool:
    before = len(_seen)
    signal.raise_signal(signal.SIGUSR1)
    return len(_seen) == before + 1


def _alarm(folder: Path) -> None:
    def late(number: int, frame: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)


def _is_late(_: None) -> bool:
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        threading.Event().wait()
    except TimeoutError:
        return True
    return False


def _loops(folder: Path) -> Any:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


async def _seven() -> int:
    await asyncio.sleep(0)
    return 7


def _loops_work(loop: Any) -> bool:
    return asyncio.run(_seven()) == asyncio.run_coroutine_threadsafe(_seven(), loop).result() == 7


def _set_environment(folder: Path) -> None:
    os.environ["PILLARBOX_TESTS_SET_IN_OPEN"] = "1"


def _path(folder: Path) -> str:
    name = f"module_of_{folder.name.replace('-', '_')}"
    (folder / f"{name}.py").write_text("ONE = 1")
    sys.path.append(str(folder))
    return name


class _Handler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())


_handler_of_lines = _Handler()


def _logging(folder: Path) -> None:
    logging.basicConfig(level=logging.DEBUG, handlers=[_handler_of_lines], force=True)


def _logs(_: None) -> bool:
    before = len(_handler_of_lines.seen)
    logging.getLogger("of.the.user").debug("a line")
    return _handler_of_lines.seen[before:] == ["a line"]


def _warnings(folder: Path) -> None:
    warnings.simplefilter("error", BytesWarning)


def _warns(_: None) -> bool:
    try:
        warnings.warn("seen", BytesWarning, stacklevel=1)
    except BytesWarning:
        return True
    return False


def _seeds(folder: Path) -> None:
    random.seed(7)
    np.random.seed(7)


def _continues(_: None) -> bool:
    of_python, of_numpy = random.Random(7), np.random.RandomState(7)
    return random.random() in [of_python.random() for _ in range(100)] and np.random.random() in of_numpy.random(100)


def _locale(folder: Path) -> None:
    locale.setlocale(locale.LC_NUMERIC, "C.UTF-8")


def _zone(folder: Path) -> None:
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()


def _thread(folder: Path) -> Any:
    asked: queue.Queue[int] = queue.Queue()
    answers: queue.Queue[int] = queue.Queue()

    def answer() -> None:
        while True:
            answers.put(asked.get() + 1)

    threading.Thread(target=answer, daemon=True).start()
    return asked, answers


def _answers(queues: Any) -> bool:
    asked, answers = queues
    asked.put(1)
    return bool(answers.get() == 2)


def _processes(_: None) -> bool:
    fork = multiprocessing.get_context("fork")
    short = fork.Process(target=abs, args=(1,))
    short.start()
    here, there = fork.Pipe()
    long = fork.Process(target=_wait, args=(there,))
    long.start()
    here.recv()
    long.terminate()
    short.join()
    long.join()
    return (short.exitcode, long.exitcode) == (0, -signal.SIGTERM)


def _wait(pipe: Any) -> None:
    pipe.send(None)
    threading.Event().wait()


def _spawns(_: None) -> bool:
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(0,))
    process.start()
    process.join()
    return process.exitcode == 0


def _forks(_: None) -> bool:
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def _pool(folder: Path) -> Any:
    return multiprocessing.get_context("fork").Pool(1)


def _executor(folder: Path) -> Any:
    return concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork"))


def _subprocesses(_: None) -> bool:
    output = subprocess.check_output(["sh", "-c", "echo 7"])
    ended = [subprocess.run(["sh", "-c", f"kill -{name} $$"], check=False).returncode for name in ("INT", "TERM")]
    return output == b"7\n" and ended == [-signal.SIGINT, -signal.SIGTERM]


def _at_exit(folder: Path) -> None:
    atexit.register((folder / "end").touch)


class _Object:
    pass


def _finalizer(folder: Path) -> Any:
    finalized = _Object()
    weakref.finalize(finalized, (folder / "end").touch)
    return finalized, tempfile.TemporaryDirectory(dir=folder)


def _replace_output(folder: Path) -> None:
    sys.stdout = io.StringIO()


def _is_replaced(_: None) -> bool:
    print("a line")
    return isinstance(sys.stdout, io.StringIO) and sys.stdout.getvalue().endswith("a line\n")


def _limits(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _context(folder: Path) -> None:
    decimal.getcontext().prec = 77
    np.seterr(divide="raise")
    pd.set_option("display.max_rows", 77)


def _has_context(_: None) -> bool:
    return (decimal.getcontext().prec, np.geterr()["divide"], pd.get_option("display.max_rows")) == (77, "raise", 77)


def _deep(_: None, depth: int = 5_000) -> bool:
    return depth == 0 or _deep(None, depth - 1)


def _handlers_of_signals(name: str, begin: Any, look: Any) -> Entry:
    refused = f"refused: set `{MOST}` to the number of state partitions or more"
    return Entry(name, begin, look, {"shared homes": refused}, error=f"increase {MOST}")


TABLE = (
    Entry(
        "`socket.setdefaulttimeout()`",
        lambda folder: __import__("socket").setdefaulttimeout(30),
        lambda _: __import__("socket").getdefaulttimeout() == 30,
    ),
    _handlers_of_signals("`signal.signal()`", _handler, _is_handled),
    _handlers_of_signals("`signal.alarm()`, `setitimer()`", _alarm, _is_late),
    Entry(
        "`faulthandler`",
        lambda folder: faulthandler.enable((folder / "faults").open("w")),
        lambda _: faulthandler.is_enabled(),
    ),
    Entry("`os.environ`", _set_environment, lambda _: "PILLARBOX_TESTS_SET_IN_OPEN" in os.environ),
    Entry("`sys.path`", _path, lambda name: importlib.import_module(name).ONE == 1),
    Entry("`os.chdir()`", os.chdir, lambda _: Path.cwd().name.startswith("of-")),
    Entry("`os.umask()`", lambda folder: os.umask(0o027), lambda _: os.umask(0o027) == 0o027),
    Entry("`logging.basicConfig()`, log levels and handlers", _logging, _logs),
    Entry("`warnings` filters", _warnings, _warns),
    Entry("`random.seed()`, `numpy.random.seed()`", _seeds, _continues),
    Entry("`locale.setlocale()`", _locale, lambda _: locale.setlocale(locale.LC_NUMERIC) == "C.UTF-8"),
    Entry("`time.tzset()`", _zone, lambda _: time.tzname[0] == "JST"),
    Entry("`decimal` contexts, `numpy.seterr()`, `pandas.set_option()`", _context, _has_context),
    Entry("`threading`", _thread, _answers),
    Entry(
        "`ThreadPoolExecutor`",
        lambda folder: concurrent.futures.ThreadPoolExecutor(1),
        lambda pool: pool.submit(abs, -1).result() == 1,
    ),
    Entry("`asyncio`", _loops, _loops_work),
    Entry("`multiprocessing` with `fork`", _nothing, _processes),
    Entry("`multiprocessing` with `spawn`", _nothing, _spawns),
    Entry("`multiprocessing.Pool`", _pool, lambda pool: pool.apply(abs, (-1,)) == 1),
    Entry("`ProcessPoolExecutor`", _executor, lambda pool: pool.submit(abs, -1).result() == 1),
    Entry("`os.fork()`", _nothing, _forks),
    Entry("`subprocess`", _nothing, _subprocesses),
    Entry("`atexit`", _at_exit, lambda _: True, at_the_end=True),
    Entry("`weakref.finalize`, `TemporaryDirectory`", _finalizer, lambda _: True, at_the_end=True),
    Entry("a replaced `sys.stdout`", _replace_output, _is_replaced),
    Entry("`sys.stdin`", _nothing, lambda _: sys.stdin.read() == ""),
    Entry("`gc.disable()`", lambda folder: gc.disable(), lambda _: not gc.isenabled()),
    Entry("`gc.freeze()`", lambda folder: gc.freeze(), lambda _: gc.get_freeze_count() > 0),
    Entry("`resource.setrlimit()`", _limits, lambda _: resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 200),
    Entry("`sys.setrecursionlimit()`", lambda folder: sys.setrecursionlimit(20_000), _deep),
    Entry(
        "`sys.exit()`",
        _nothing,
        lambda _: sys.exit(7),
        otherwise="refused: the task fails with `SystemExit`",
        error="SystemExit: 7",
    ),
    Entry(
        "`os._exit()`, a crash",
        _nothing,
        lambda _: os._exit(7),
        dict.fromkeys(PLACES[1:], "ends the home: the task fails and is tried again"),
        otherwise="ends the worker: the task fails and is tried again",
        error="ended ",
    ),
)
BY_NAME = {entry.name: entry for entry in TABLE}


class Uses(KeyedProcessFunction):
    def __init__(self, name: str, folder: str) -> None:
        self.name, self.folder = name, folder

    def open(self, runtime_context):
        self.kept = BY_NAME[self.name].begin(Path(tempfile.mkdtemp(prefix="of-", dir=self.folder)))

    def process_element(self, value, ctx):
        yield bool(BY_NAME[self.name].look(self.kept)), os.getpid()


def query_of(entry: Entry, folder: Path, run: str, **settings: str) -> Query:
    return keyed_query(Uses(entry.name, str(folder)), 2, run=run, query=run, settings=settings)


def outcome(entry: Entry, folder: Path, run: str, **settings: str) -> str:
    query = query_of(entry, folder, run, **settings)
    try:
        rows = [row for _ in range(EPOCHS) for row in query.run_batch([*range(8)])]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return WORKS if len(rows) == 8 * EPOCHS and all(works for works, _ in rows) else f"does not work: {rows}"


def play_worker(entry: Entry, folder: Path) -> str:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        text = outcome(entry, folder, "run", **{MODE: "off"})
        os.write(writing, text.encode())
        os.close(writing)
        os._exit(0)
    os.close(writing)
    with open(reading) as file:
        text = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return text or f"the worker has ended with {status}"


def play_workers(folder: str, *names: str) -> None:
    for name in names:
        path = Path(tempfile.mkdtemp(dir=folder))
        result = play_worker(BY_NAME[name], path)
        print(json.dumps([name, result, len([*path.glob("of-*/end")])]), flush=True)
