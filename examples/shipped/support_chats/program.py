"""Summarizes support chats with a rate-limited language model. Each chat is a session."""

import json
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from model import serve
from pyspark.sql import DataFrame

import pillarbox
from pillarbox import (
    AsyncCache,
    AsyncFailure,
    AsyncRetryStrategy,
    EventTimeSessionWindows,
    OutputTag,
    ProcessWindowFunction,
    Row,
    StreamExecutionEnvironment,
    TimeWindow,
    WatermarkStrategy,
)

PRICE = 0.002  # dollars for an answer
FAILED = OutputTag[AsyncFailure]("failed")


class AsChat(ProcessWindowFunction[Row, Any, str, TimeWindow]):
    def process(self, key: str, context: Any, elements: Iterable[Row]) -> Iterator[tuple[str, str]]:
        yield key, "\n".join(line.text for line in sorted(elements, key=lambda line: line.number))


def busy(error: BaseException) -> bool:
    return not isinstance(error, HTTPError) or error.code == 429  # other refusals stay the same when asked again


def collect(outputs: dict[str, DataFrame], epoch: int) -> None:
    for name, output in outputs.items():
        seen[name].update(text for (text,) in sorted(output.collect()))


spark, here = pillarbox.local_session(), Path(__file__).parent
env = StreamExecutionEnvironment.get_execution_environment(spark)
columns = "number LONG, at TIMESTAMP, customer STRING, text STRING"
lines = env.from_dataframe(spark.readStream.csv(str(here / "chats"), header=True, schema=columns))
times = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamp_assigner("at")
by_customer = lines.assign_timestamps_and_watermarks(times).key_by("customer")
sessions = by_customer.window(EventTimeSessionWindows.with_gap("10 minutes"))
chats = sessions.process(AsChat(), "customer STRING, text STRING").uid("chats")
seen: dict[str, Counter[str]] = {"summaries": Counter(), "failed": Counter()}

with serve(0) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/summarize"

    def summarize(chat: Any) -> tuple[str]:  # of the text alone: equal chats share the result
        with urlopen(address, chat.text.encode(), timeout=5) as answer:
            return (json.load(answer)["summary"],)

    summaries = chats.key_by("text").map_async(  # by text: equal chats meet in one partition, which has a cache
        summarize, "summary STRING", timeout="1 minute", job_rate_limit=60, on_failure=FAILED,
        retry=AsyncRetryStrategy.exponential_backoff(10, "200 ms", "5 seconds", exception_predicate=busy),
        cache=AsyncCache(10_000, "1 hour", "text"),
    ).uid("summaries")  # fmt: skip
    failed = summaries.get_side_output(FAILED).map(lambda failure: (f"{failure.value.customer}: {failure.error}",))
    outputs = {"summaries": (summaries, None), "failed": (failed, "error STRING")}
    writer = env.for_each_batch(collect, outputs).trigger(availableNow=True)
    pillarbox.run(pillarbox.start(writer.option("checkpointLocation", mkdtemp())))

answers, asked = server.answers, server.answers[200] + server.answers[400]
for name, texts in seen.items():
    print(f"{texts.total()} {name}:", *(f"{count} x {text}" for text, count in texts.most_common(4)), sep="\n  ")
hits = sum(texts.total() for texts in seen.values()) - asked
print(f"{asked} answers after {answers[429]} retries; {hits} cache hits saved ${hits * PRICE:.2f}")
