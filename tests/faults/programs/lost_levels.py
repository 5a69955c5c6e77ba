"""Recomputed shuffle levels: ``python -m tests.faults.programs.lost_levels HOME KIND LOSS ROUNDS [SEED]``.

Level 1 emits each key once, after the file ``open`` lists the key: from a processing-time timer (KIND ``ticks``), or
when an async operator's carried request is answered (``carry``). Level 2 counts its input.

Each round stops a task of level 2 during an epoch. Then it deletes level 1's shuffle files (LOSS ``files``), or kills
executors of a ``local-cluster`` (``executors``). When level 1 runs again, ``open`` lists other keys. A failed query is
restarted. The last line of output is JSON: number of failures, missing keys and duplicated keys.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor, local_session

__all__ = ["LostLevels"]

KEYS = 12
_LOOK_MS = 20
_PATIENCE = 600.0


class Ticks(KeyedProcessFunction):
    """Emits one record per key, when the file ``open`` lists the key."""

    def __init__(self, home: str) -> None:
        self.home = home

    def open(self, runtime_context: Any) -> None:
        self.waits = runtime_context.get_state(ValueStateDescriptor("waits"))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.waits.update(True)
        self.wait(ctx)

    def wait(self, ctx: Any) -> None:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + _LOOK_MS)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        key = ctx.get_current_key()
        if is_open(self.home, key):
            self.waits.clear()
            yield key, "tick"
        else:
            self.wait(ctx)


class Answers:
    def __init__(self, home: str) -> None:
        self.home = home

    async def __call__(self, value: Any) -> Any:
        while not is_open(self.home, value.key):
            await asyncio.sleep(_LOOK_MS / 1000)
        return value.key, "answer"


def is_open(home: str, key: int) -> bool:
    first, end = map(int, Path(home, "open").read_text().split())
    return first <= key % KEYS < end


class Second(KeyedProcessFunction):
    """Counts records by key. If a file ``hold`` exists, the first task with a record hangs until its process ends."""

    def __init__(self, home: str) -> None:
        self.home = Path(home)

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        with suppress(FileNotFoundError):
            (self.home / "hold").rename(self.home / "held")
            while not (self.home / "go").exists():
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGKILL)
        self.count.update((self.count.value() or 0) + 1)
        yield value[0], self.count.value()


class LostLevels:
    """The query with two shuffle levels. Its sink replaces the output of repeated batches.

    Args:
        parallelism: parallelism of both levels. If it is greater than 1, Spark often fails the query instead of
            repeating a level.
        lose: called to lose the output of level 1.
    """

    def __init__(self, spark: Any, home: Path, kind: str, lose: Callable[[], None], parallelism: int = 1) -> None:
        self.spark = spark
        self.home = home
        self.kind = kind
        self.lose = lose
        self.parallelism = parallelism
        self.emitted: dict[int, list[int]] = {}
        self.failures: list[str] = []
        self.rounds = 0
        (home / "in").mkdir(parents=True)
        self.query: Any = None

    def start(self) -> None:
        rows = self.spark.readStream.schema("key LONG").json(str(self.home / "in"))
        env = StreamExecutionEnvironment.get_execution_environment(self.spark).set_parallelism(self.parallelism)
        keyed = env.from_dataframe(rows).key_by("key")
        if self.kind == "carry":
            first = keyed.map_async(
                Answers(str(self.home)), capacity=100, timeout="10 minutes", ordered=False, on_barrier="carry"
            )
        else:
            first = keyed.process(Ticks(str(self.home)))
        second = first.uid("first").key_by(lambda value: value[0]).process(Second(str(self.home))).uid("second")
        self.query = (
            second.to_dataframe("key LONG, n LONG")
            .writeStream.foreachBatch(self._write)
            .option("checkpointLocation", str(self.home / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )

    def _write(self, frame: Any, batch: int) -> None:
        self.emitted[batch] = [row.key for row in frame.collect()]

    def found(self) -> Counter[int]:
        return Counter(key for keys in list(self.emitted.values()) for key in keys)

    def round(self) -> None:
        keys = range(self.rounds * KEYS, (self.rounds + 1) * KEYS)
        self.rounds += 1
        self._put("open", "0 1")
        self._put("hold", "")
        self._put(f"in/{self.rounds}.json", "".join(json.dumps({"key": key}) + "\n" for key in keys))
        if self.query is not None:
            self.query.stop()
        self.start()  # on the state that the round before has left in files
        self._wait((self.home / "held").exists)
        self.lose()
        self._put("open", f"1 {KEYS}")
        self._put("go", "")
        self._wait(lambda: all(key in self.found() for key in keys[1:]))
        self._put("open", f"0 {KEYS}")
        self._wait(lambda: keys[0] in self.found())
        for name in ("hold", "held", "go"):
            (self.home / name).unlink(missing_ok=True)

    def _put(self, name: str, content: str) -> None:
        (self.home / "new").write_text(content)
        (self.home / "new").rename(self.home / name)

    def _wait(self, what: Callable[[], object]) -> None:
        patience = time.monotonic() + _PATIENCE
        while not what():
            if not self.query.isActive:
                message = str(self.query.exception())
                match = re.search(r"[^\n]*(indeterminate|different attempt|has ended)[^\n]*", message)
                self.failures.append((match[0] if match else message).strip()[:200])
                self.start()
            if time.monotonic() > patience:
                raise AssertionError(f"round {self.rounds}: after {_PATIENCE} s of waiting: {self.result()}")
            time.sleep(0.01)

    def result(self) -> dict[str, Any]:
        expected = Counter(range(self.rounds * KEYS))
        return {"lost": sorted(expected - self.found()), "doubled": sorted(self.found() - expected)}

    def stop(self) -> dict[str, Any]:
        last = max(self.emitted)
        self._wait(lambda: not self.query.status["isTriggerActive"] or max(self.emitted) > last + 1)
        self.query.stop()
        return self.result()


def lose_files(local: Path) -> Callable[[], None]:
    def lose() -> None:
        for path in local.glob("**/shuffle_*"):
            path.unlink(missing_ok=True)

    return lose


def lose_executors(spark: Any, seed: int) -> Callable[[], None]:
    rng = random.Random(seed)
    driver = int(spark._jvm.java.lang.ProcessHandle.current().pid())

    def lose() -> None:
        running = list(_children(driver, b"CoarseGrainedExecutorBackend"))
        for process in rng.sample(running, rng.randint(1, len(running))):
            os.kill(process, signal.SIGKILL)

    return lose


def _children(parent: int, command: bytes) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            of = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if of == parent and command in (folder / "cmdline").read_bytes():
                yield int(folder.name)


def main(home: Path, kind: str, loss: str, rounds: int, seed: int) -> None:
    home.mkdir(parents=True, exist_ok=True)
    parallelism = 1 + seed % 2
    # Each epoch writes a snapshot of the state, which Spark does in a separate thread.
    often = {"minDeltasForSnapshot": "1", "maintenanceInterval": "200ms"}
    more = {f"spark__sql__streaming__stateStore__{name}": value for name, value in often.items()}
    more |= {"spark__local__dir": str(home / "local")}
    if loss == "executors":
        more |= {"spark__master": "local-cluster[2,2,1024]", "spark__deploy__maxExecutorRetries": "-1"}
    spark = local_session(2, app_name="lost levels", **more)
    lose = lose_files(home / "local") if loss == "files" else lose_executors(spark, seed)
    levels = LostLevels(spark, home / "query", kind, lose, parallelism)
    for _ in range(rounds):
        levels.round()
    result = levels.stop()
    settings = {"spark": spark.version, "kind": kind, "loss": loss, "rounds": rounds, "parallelism": parallelism}
    print(json.dumps({**settings, "failures": Counter(levels.failures), **result}), flush=True)
    os._exit(1 if result["lost"] or result["doubled"] else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]) if len(sys.argv) > 5 else 0)
