"""The query of ``make demo-agent``, in Spark sessions with other settings.

``python -m tests.faults.chaos.agents_query FOLDER URL --slots 8 --homes 2``
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from examples.agents.job import MODEL
from examples.agents.run import run
from pillarbox import Budget, local_session

# Tokens of the most expensive answer.
MOST = 100


def add_session_arguments(parser: argparse.ArgumentParser) -> None:
    """Add command-line arguments for the session and for the budget's ceiling."""
    parser.add_argument("--slots", type=int, default=2, help="concurrent tasks (%(default)s)")
    parser.add_argument("--homes", type=int, help="the most homes, which then share processes")
    parser.add_argument("--connect", action="store_true", help="a session of Spark Connect, without a ceiling")
    parser.add_argument("--ceiling", type=int, help="tokens; the lines that would exceed them become dead letters")


def session_of(arguments: argparse.Namespace) -> SparkSession:
    settings = {"spark.log.level": "ERROR", "spark.sql.session.timeZone": "UTC"}
    if arguments.homes is not None:
        settings["spark.pillarbox.homes.max"] = str(arguments.homes)
    if not arguments.connect:
        named = {name.replace(".", "__"): value for name, value in settings.items()}
        return local_session(arguments.slots, app_name="agents", **named)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_TESTING"] = "1"  # the server takes a free port
    settings |= {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.daemon.module": "pillarbox.daemon",
        "spark.sql.shuffle.partitions": str(arguments.slots),
        "spark.ui.enabled": "false",
    }
    builder: Any = SparkSession.builder.remote(f"local[{arguments.slots}, 4]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session


def budget_of(arguments: argparse.Namespace) -> Budget:
    if arguments.connect:
        return replace(MODEL, ceiling=None)
    if arguments.ceiling is None:
        return MODEL
    return replace(MODEL, ceiling=(arguments.ceiling, "1 day"), estimate=MOST, when_exceeded="fail")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("url", help="the address of the model")
    add_session_arguments(parser)
    arguments = parser.parse_args()
    spark = session_of(arguments)
    try:
        run(spark, arguments.folder, arguments.url, budget_of(arguments))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
