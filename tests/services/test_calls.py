"""Recorded calls on Spark. The service charges once per record, although processes are killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from tests.spark.streams import Rows

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="it kills processes of /proc"),
]
RECORDS, KEYS = 16, 8
SECONDS = 60.0


class Bank(ThreadingHTTPServer):
    """A service that takes payments, and holds receipts until the test releases them.

    Attributes:
        charges: (record, process) of payment requests, by idempotency key.
        receipts: records whose receipts were requested.
        is_open: whether requests for receipts are answered.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.charges: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self.receipts: list[int] = []
        self.is_open = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Bank

    def do_POST(self) -> None:
        bank, content = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/charge":
            charges = bank.charges[self.headers["Idempotency-Key"]]
            charges.append((content["id"], content["pid"]))
            answer = {"payment": charges[0][0]}
        else:
            bank.receipts.append(content["id"])
            bank.is_open.wait(SECONDS)
            answer = {"receipt": content["id"]}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def bank() -> Iterator[Bank]:
    server = Bank()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.is_open.set()
    server.shutdown()
    server.server_close()


class Pay(KeyedProcessFunction[int, Any, Any]):
    def __init__(self, url: str) -> None:
        self.url = url

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int))

    def post(self, path: str, content: Any, **headers: str) -> Any:
        request = Request(self.url + path, json.dumps(content).encode(), headers)
        with urlopen(request, timeout=SECONDS) as response:
            return json.load(response)

    def charge(self, identity: int, *, idempotency_key: str) -> Any:
        content = {"id": identity, "pid": os.getpid()}
        return self.post("/charge", content, **{"Idempotency-Key": idempotency_key})

    def receipt(self, identity: int) -> Any:
        return self.post("/receipt", {"id": identity})

    async def process_element(self, row: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        payment = await ctx.call(self.charge, row.id, retry=3)
        receipt = await ctx.call(self.receipt, row.id)
        yield row.key, row.id, self.count.value(), payment["payment"], receipt["receipt"]


def wait_for(condition: Callable[[], object], query: Any) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        if query.exception() is not None:
            raise query.exception()
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


@pytest.mark.slow("two starts of a query, and homes that are killed")
def test_a_killed_epoch_pays_for_nothing_twice(spark: SparkSession, tmp_path: Path, bank: Bank) -> None:
    spark.range(RECORDS).selectExpr("id", f"id % {KEYS} AS key").coalesce(1).write.parquet(str(tmp_path / "in"))
    out = Rows()

    def start() -> Any:
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
        source = spark.readStream.schema("id LONG, key LONG").parquet(str(tmp_path / "in"))
        paid = (
            env.from_dataframe(source)
            .key_by("key")
            .process(Pay(bank.url), journal=str(tmp_path / "journal"))
            .uid("pay")
        )
        frame = paid.to_dataframe("key LONG, id LONG, number LONG, payment LONG, receipt LONG")
        writer = frame.writeStream.foreachBatch(out).option("checkpointLocation", str(tmp_path / "checkpoint"))
        return pillarbox.start(writer.trigger(processingTime="0 seconds"))

    query = start()
    try:
        # The first record of each key has been paid for, and waits for its receipt.
        wait_for(lambda: len(bank.receipts) == KEYS, query)
        before = {key: list(charges) for key, charges in bank.charges.items()}
        files = [path for path in (tmp_path / "journal").rglob("*") if path.is_file()]
        assert files and all(path.parent.parent.parent.name == "pay" for path in files)
        for pid in {pid for charges in before.values() for _, pid in charges}:
            os.kill(pid, signal.SIGKILL)
        bank.is_open.set()
        wait_end = time.monotonic() + SECONDS
        while len(out) < RECORDS and query.isActive and time.monotonic() < wait_end:
            time.sleep(0.02)
    finally:
        query.stop()
    query = start()
    wait_for(lambda: len(out) >= RECORDS, query)
    query.stop()
    assert sorted(row[1] for row in out) == list(range(RECORDS))
    assert all(row[3] == row[4] == row[1] for row in out)
    assert Counter(row[2] for row in out) == {1: KEYS, 2: KEYS}
    assert len(before) == KEYS
    assert all(bank.charges[key] == charges for key, charges in before.items()), "a recorded payment was made again"
    assert sorted(charges[0][0] for charges in bank.charges.values()) == list(range(RECORDS))
