"""Finds out which damage to state files Spark detects: ``python -m tests.faults.programs.state_files HOME``.

A keyed query runs a few epochs. Then its newest state file is truncated, altered, emptied, duplicated or removed.
Hadoop's local checksums are off, as in object stores. The query restarts from the damaged copy of its checkpoint. The
outcome is one of

- noticed: the query failed,
- harmless: the result is right,
- SILENT: the result is wrong.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pillarbox import KeyedProcessFunction, ListStateDescriptor, StreamExecutionEnvironment, local_session

__all__ = ["DAMAGES", "cut", "newest_state_file", "run", "write_input"]

_STORE = "spark.sql.streaming.stateStore."
ROWS = _STORE + "rowChecksum.enabled"
FILES = "spark.sql.streaming.checkpoint.fileChecksum.enabled"

SETTINGS: dict[str, dict[str, str]] = {
    "nothing": {FILES: "false"},
    "checksums of files": {FILES: "true"},
    "checksums of rows": {FILES: "false", ROWS: "true"},
    "both": {FILES: "true", ROWS: "true"},
}


class Remember(KeyedProcessFunction):
    """Stores all values of a key, and emits their number and sum."""

    def __init__(self, attempt: str) -> None:
        # Each attempt is a new program to the workers, so none continues with its state in memory.
        self.attempt = attempt

    def open(self, runtime_context):
        self.values = runtime_context.get_list_state(ListStateDescriptor("values"))

    def process_element(self, value, ctx):
        self.values.add((value.n, value.text))
        records = list(self.values.get())
        yield ctx.get_current_key(), len(records), sum(n for n, _ in records)


def write_input(spark: Any, folder: Path, epochs: int, seed: int = 1) -> None:
    rng = random.Random(seed)
    for epoch in range(epochs):
        keys = range(60) if epoch == epochs - 1 else [rng.randrange(60) for _ in range(40)]
        rows = [(key, rng.randrange(1000), rng.randbytes(rng.randrange(50, 500)).hex()) for key in keys]
        file = folder.parent / f"{folder.name}.{epoch}"
        spark.createDataFrame(rows, "k LONG, n LONG, text STRING").coalesce(1).write.parquet(str(file))
        folder.mkdir(exist_ok=True)
        (part,) = file.glob("part-*.parquet")
        os.utime(part, (1_700_000_000 + epoch, 1_700_000_000 + epoch))  # files are read in the order of their times
        part.rename(folder / f"{epoch:02d}.parquet")
        shutil.rmtree(file)


def run(spark: Any, inputs: Path, checkpoint: Path, attempt: str, settings: dict[str, str]) -> list[Any]:
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        df = spark.readStream.schema("k LONG, n LONG, text STRING").option("maxFilesPerTrigger", 1)
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(1).set_max_parallelism(1)
        remembered = env.from_dataframe(df.parquet(str(inputs))).key_by("k").process(Remember(attempt)).uid("remember")
        results: list[Any] = []
        query = (
            remembered.to_dataframe("k LONG, count LONG, sum LONG")
            .writeStream.foreachBatch(lambda rows, epoch: results.extend(tuple(row) for row in rows.collect()))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(results)
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def newest_state_file(checkpoint: Path, kind: str) -> Path:
    """Return the newest file in the first partition's state store. ``kind`` is ``changelog``, ``zip`` or ``sst``."""
    files = sorted(
        (path for path in (checkpoint / "state" / "0" / "0").rglob(f"*.{kind}")),
        key=lambda path: (path.stat().st_mtime_ns, path.name),
    )
    if not files:
        raise FileNotFoundError(f"{checkpoint}: there is no {kind}")
    return files[-1]


def cut(count: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: max(0, len(content) - count)])

    return damage


def flip(share: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(share * (len(content) - 1))] ^= 0x10
        path.write_bytes(content)

    return damage


def lose_records(spark: Any, path: Path, count: int) -> None:
    """Truncate a changelog after a record, so that it is still a well-formed stream.

    Args:
        count: number of records to remove from the end. 0 removes only the end mark.
    """
    jvm = spark._jvm
    reader = jvm.net.jpountz.lz4.LZ4BlockInputStream(jvm.java.io.FileInputStream(str(path)))
    content = bytes(reader.readAllBytes())
    reader.close()
    ends = [4]  # the name of the version: length, "v2"
    while content[ends[-1]] != 0:
        at = ends[-1] + 1
        for _ in ("key", "value"):
            length = int.from_bytes(content[at : at + 4], "big", signed=True)
            at += 4 + max(0, length)
        ends.append(at)
    writer = jvm.net.jpountz.lz4.LZ4BlockOutputStream(jvm.java.io.FileOutputStream(str(path)))
    writer.write(content[: ends[-1 - count]])
    writer.close()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "cut by 1 byte": cut(1),
    "cut by 22 bytes": cut(22),
    "one bit flipped": flip(0.5),
    "removed": Path.unlink,
}


@dataclass
class Trial:
    settings: str
    kind: str
    damage: str
    outcome: str
    said: str


@dataclass
class Checkpoint:
    """The checkpoint of an ended query, and the expected results of later epochs."""

    inputs: Path
    path: Path
    right: list[Any]


def make(spark: Any, home: Path, name: str, settings: dict[str, str], epochs: int = 6) -> Checkpoint:
    home.mkdir(parents=True)
    inputs = home / "in"
    write_input(spark, inputs, epochs)
    last = inputs / f"{epochs - 1:02d}.parquet"
    last.rename(home / "last.parquet")
    run(spark, inputs, home / "checkpoint", name, settings)
    (home / "last.parquet").rename(last)
    for crc in (home / "checkpoint").rglob(".*.crc"):
        crc.unlink()
    shutil.copytree(home / "checkpoint", home / "whole")
    right = run(spark, inputs, home / "whole", f"{name} whole", settings)
    assert len(right) == 60, right
    return Checkpoint(inputs, home / "checkpoint", right)


def trials(
    spark: Any, home: Path, name: str, checkpoint: Checkpoint, kind: str, now: dict[str, str]
) -> Iterator[Trial]:
    damages = dict(DAMAGES)
    if kind == "changelog":
        for count in (0, 1, 2):
            damages[f"without its last {count} records"] = partial(lose_records, spark, count=count)
    for number, (what, damage) in enumerate(reversed(damages.items())):
        copy = home / f"{kind}{number}"
        shutil.copytree(checkpoint.path, copy)
        try:
            newest = newest_state_file(copy, kind)
        except FileNotFoundError:
            shutil.rmtree(copy)
            continue
        damage(newest)
        try:
            result = run(spark, checkpoint.inputs, copy, f"{name} {kind} {what}", now)
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            causes = [line.strip() for line in lines if line.startswith(("Caused by", "pillarbox."))]
            message = (causes or lines or [type(error).__name__])[-1][:160]
            outcome = "noticed"
        else:
            outcome, message = ("harmless" if result == checkpoint.right else "SILENT"), ""
        shutil.rmtree(copy)
        yield Trial(name, kind, what, outcome, message)


def main(home: Path, names: list[str]) -> None:
    spark = local_session(2, spark__log__level="OFF", spark__sql__streaming__stateStore__maintenanceInterval="1s")
    for kind, more in (("changelog", {}), ("zip", {_STORE + "minDeltasForSnapshot": "2"})):
        for name in names or SETTINGS:
            settings = SETTINGS[name]
            folder = home / kind / name.replace(" ", "-")
            checkpoint = make(spark, folder, f"{name} {kind}", {**settings, **more})
            for trial in trials(spark, folder, name, checkpoint, kind, settings):
                print(json.dumps([spark.version, *vars(trial).values()]), flush=True)
            if name == "nothing":
                # An older checkpoint continues with the new settings.
                result = run(spark, checkpoint.inputs, checkpoint.path, "settings came", SETTINGS["both"])
                print(json.dumps([spark.version, "older checkpoint", kind, result == checkpoint.right]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
