# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="import-not-found, misc"
"""PyFlink's side of ``bench_async.py``; runs in a virtual environment of its own, which has no pillarbox and no Spark.

The job is a sequence, ``AsyncDataStream.unordered_wait`` (the faster of the two) and a file sink, with two subtasks in
process mode. Its time goes from the first request to the last result, as the user's function sees them: the start-up of
a job and of its Python workers, some seconds, does not count.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyflink.common import Configuration, Encoder, Time, Types, WatermarkStrategy
from pyflink.datastream import AsyncDataStream, AsyncFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSink
from pyflink.datastream.connectors.number_seq import NumberSequenceSource

from benchmarks.async_work import Stopwatch, Work
from benchmarks.support import answer, questions

TIMEOUT = Time.seconds(30)


class Lookup(AsyncFunction):
    """The lookup, with a stopwatch."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def open(self, runtime_context):
        try:
            import asyncio

            import uvloop

            # The loop that PyFlink makes after this is uvloop's.
            asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        except ImportError:
            pass
        self.watch = Stopwatch(self.work.times)
        self.opening = None

    async def async_invoke(self, value):
        # There is no hook of PyFlink's on the event loop's thread, where clients want to be made.
        if self.opening is None:
            import asyncio

            self.watch.begin()
            self.client = self.work.client()
            self.opening = asyncio.ensure_future(self.client.__aenter__())
        look_up = self.opening.result() if self.opening.done() else await self.opening
        score = await look_up(value)
        self.watch.end()
        return [f"{value} {score}"]

    def timeout(self, value):
        raise TimeoutError(f"no answer for {value}")


def run(work: Work, records: int, bundle: int) -> dict[str, object]:
    configuration = Configuration()
    configuration.set_string("python.execution-mode", "process")
    configuration.set_string("python.fn-execution.bundle.size", str(bundle))
    configuration.set_string("python.fn-execution.bundle.time", "60000")
    configuration.set_string("python.fn-execution.arrow.batch.size", str(bundle))
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(2)
    env.set_python_executable(sys.executable)
    directory = Path(tempfile.mkdtemp(prefix="bench-async-flink-"))
    try:
        (directory / "times").mkdir()
        source = env.from_source(
            NumberSequenceSource(0, records - 1), WatermarkStrategy.no_watermarks(), "ids", Types.LONG()
        )
        lookup = Lookup(replace(work, times=str(directory / "times")))
        result = AsyncDataStream.unordered_wait(source, lookup, TIMEOUT, work.capacity, Types.STRING())
        result.sink_to(FileSink.for_row_format(str(directory / "out"), Encoder.simple_string_encoder("UTF-8")).build())
        start = time.monotonic()
        env.execute()
        whole = time.monotonic() - start
        rows = [
            tuple(map(int, line.split()))
            for path in (directory / "out").rglob("*")
            if path.is_file()
            for line in path.read_text().splitlines()
        ]
        return {
            "seconds": Stopwatch.read_all(directory / "times"),
            "whole": whole,
            "results": [len(rows), sum(score for _, score in rows), sum(key * score for key, score in rows)],
        }
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bundle", type=int, default=10_000, help="elements of a bundle; its end waits for requests")
    arguments = parser.parse_args()
    for question in questions():
        try:
            answer(**run(Work(**question["work"]), question["records"], arguments.bundle))
        except Exception:
            answer(error=traceback.format_exc())


if __name__ == "__main__":
    main()
