"""Payments in Kafka topics, a program that reads them, and its expected output."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaMember

import pillarbox
from pillarbox import StreamExecutionEnvironment
from tests.kafka.kafka_job import read, writer

__all__ = ["Shop", "totals_of"]


def totals_of(payments: Iterable[tuple[str, int]], begin: Iterable[tuple[str, int]] = ()) -> Counter[Any]:
    counts: Counter[Any] = Counter()
    before = list(begin)
    state: dict[str, tuple[int, int]] = {}
    for number, (card, amount) in enumerate(itertools.chain(before, payments)):
        n, total = state.get(card, (0, 0))
        state[card] = n + 1, total + amount
        if number >= len(before):
            counts[card, n + 1, total + amount, "n"] += 1
    return counts


class Shop:
    """Topics with payments, and a folder with checkpoints.

    Args:
        name: topic-name prefix, to keep tests apart on the shared broker.
    """

    def __init__(self, spark: Any, servers: str, folder: Path, name: str) -> None:
        self.spark = spark
        self.servers = servers
        self.folder = folder
        self._name = "".join(letter if letter.isalnum() else "-" for letter in name)
        self._jvm = spark.sparkContext._jvm
        properties = self._jvm.java.util.Properties()
        properties.put("bootstrap.servers", servers)
        self._admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
        self._random = random.Random(7)
        #: All that was ever paid, by topic: each card and amount.
        self.paid: dict[str, list[tuple[str, int]]] = {}

    def close(self) -> None:
        self._admin.close()

    # -- topics --

    def full(self, topic: str) -> str:
        return f"{self._name}-{topic}" if self._name else topic

    def create(self, topic: str, partitions: int) -> None:
        optional = self._jvm.java.util.Optional
        new_topic = self._jvm.org.apache.kafka.clients.admin.NewTopic(
            self.full(topic), optional.of(partitions), optional.empty()
        )
        self._admin.createTopics(self._jvm.java.util.Collections.singleton(new_topic)).all().get()
        self.paid[topic] = []

    def grow(self, topic: str, partitions: int) -> None:
        more = self._jvm.org.apache.kafka.clients.admin.NewPartitions.increaseTo(partitions)
        changes = self._jvm.java.util.Collections.singletonMap(self.full(topic), more)
        self._admin.createPartitions(changes).all().get()

    def forget(self, topic: str, partition: int, offset: int) -> None:
        topic_partition = self._jvm.org.apache.kafka.common.TopicPartition(self.full(topic), partition)
        deleted = self._jvm.org.apache.kafka.clients.admin.RecordsToDelete
        # There is a method of the object of the same name, which hides the static one from Py4J.
        before = JavaMember("beforeOffset", None, f"z:{deleted._fqn}", deleted._gateway_client)(offset)
        self._admin.deleteRecords(self._jvm.java.util.Collections.singletonMap(topic_partition, before)).all().get()

    def pay(self, topic: str, cards: Mapping[str, int], times: int = 12) -> None:
        paid = [(card, self._random.randrange(1, 1000)) for _ in range(times) for card in cards]
        rows = [(cards[card], card, str(amount)) for card, amount in paid]
        (
            self.spark.createDataFrame(rows, "partition INT, key STRING, value STRING")
            .coalesce(1)
            .selectExpr("*", "array(named_struct('key', 'n', 'value', CAST('1' AS BINARY))) AS headers")
            .write.format("kafka")
            .option("kafka.bootstrap.servers", self.servers)
            .option("includeHeaders", True)
            .option("topic", self.full(topic))
            .save()
        )
        self.paid[topic] += paid

    def send(self, topic: str, values: Iterable[str | None]) -> None:
        rows = self.spark.createDataFrame([(value,) for value in values], "value STRING")
        to = rows.coalesce(1).write.format("kafka").option("kafka.bootstrap.servers", self.servers)
        to.option("topic", self.full(topic)).save()

    def values(self, topic: str) -> list[str]:
        read = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.servers)
        rows = read.option("subscribe", self.full(topic)).load().orderBy("partition", "offset")
        return [row[0] for row in rows.selectExpr("CAST(value AS STRING)").collect()]

    # -- queries --

    def read(self, topic: str, **options: Any) -> Any:
        return read(self.spark, self.servers, self.full(topic), **options)

    def environment(self, parallelism: int, max_parallelism: int = 8, savepoint: str | None = None, **how: Any) -> Any:
        env = StreamExecutionEnvironment.get_execution_environment(self.spark)
        env.set_parallelism(parallelism).set_max_parallelism(max_parallelism)
        if savepoint is not None:
            env.from_savepoint(self.folder / savepoint, **how)
        return env

    def run(self, checkpoint: str, env: Any, sources: dict[str, Any]) -> None:
        query = writer(env, sources, self.folder / checkpoint).trigger(availableNow=True)
        pillarbox.start(query).awaitTermination()

    def save(self, checkpoint: str, savepoint: str) -> None:
        pillarbox.savepoint(self.spark, str(self.folder / checkpoint), str(self.folder / savepoint))

    def found(self, *checkpoints: str) -> Counter[Any]:
        rows: Counter[Any] = Counter()
        for checkpoint in checkpoints:
            out = self.spark.read.schema("card STRING, n LONG, total LONG, mark STRING")
            rows.update(map(tuple, out.json(f"{self.folder / checkpoint}-out").collect()))
        return rows
