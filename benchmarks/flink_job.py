# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="import-not-found, misc"
"""What PyFlink's sides share that run a job for each question; runs in PyFlink's environment, without pillarbox."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from typing import Any

from pyflink.common import Configuration, Encoder
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSink
from pyflink.table import StreamTableEnvironment

from benchmarks.support import answer, questions


def environment(arguments: argparse.Namespace, *, metrics: bool = False) -> tuple[Any, Any]:
    """Return an environment of DataStreams and one of tables, with large bundles and a state cache for all keys."""
    configuration = Configuration()
    for name, value in {
        "python.execution-mode": arguments.mode,
        "python.fn-execution.bundle.size": arguments.bundle,
        "python.fn-execution.bundle.time": 10_000,
        "python.state.cache-size": 4_000_000,
        "python.metric.enabled": str(metrics).lower(),
        "pipeline.object-reuse": "true",
    }.items():
        configuration.set_string(name, str(value))
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(arguments.parallelism)
    env.set_python_executable(sys.executable)
    return env, StreamTableEnvironment.create(env)


def write(result: Any, target: str) -> None:
    """Have a stream written as lines of text."""
    result.sink_to(FileSink.for_row_format(target, Encoder.simple_string_encoder("UTF-8")).build())


def serve(title: str, run: Callable[..., dict[str, Any]]) -> None:
    """Answer each question by a job.

    Args:
        title: of the command line.
        run: runs a job: ``arguments`` is the command line, all other parameters are those of the question.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--mode", choices=("process", "thread"), default="process")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--bundle", type=int, default=10_000, help="elements of a bundle")
    arguments = parser.parse_args()
    for question in questions():
        try:
            answer(**run(arguments=arguments, **question))
        except Exception:
            answer(error=traceback.format_exc())
