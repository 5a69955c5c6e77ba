from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from pyspark.sql.functions import col

from pillarbox import (
    CheckpointMismatchError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    TypeMismatchError,
    Types,
    ValueStateDescriptor,
    read_state,
    write_state,
)
from pillarbox.testing import ProgramTestHarness, row

pytestmark = pytest.mark.spark


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.LONG()))
        self.times = runtime_context.get_list_state(ListStateDescriptor("times", Types.LONG()))

    def process_element(self, value, ctx):
        self.seen.update((self.seen.value() or 0) + 1)
        self.times.add(value.at)
        yield value.card, self.seen.value(), list(self.times)

    def on_timer(self, timestamp, ctx):
        yield f"{ctx.get_current_key()} at {timestamp}", self.seen.value(), list(self.times)


HISTORY = """
SELECT card, length(card) AS seen, array(1L, 2L) AS times,
       array(named_struct('domain', 'event', 'timestamp', 50L)) AS due
FROM VALUES ('a'), ('bb'), ('ccc') AS history(card)
"""
STATES = [ValueStateDescriptor("seen", Types.LONG()), ListStateDescriptor("times", Types.LONG())]


def outcome(directory: str, *cards: str) -> list[Any]:
    def build(env: Any, rows: Any) -> Any:
        by_card = env.from_savepoint(directory) and rows.key_by(lambda value: value.card, key_type=Types.STRING())
        return by_card.process(Count()).uid("count")

    with ProgramTestHarness(build, parallelism=2) as harness:
        harness.push_all("rows", [row(card=card, at=3) for card in cards])
        return sorted(harness.end_input()["output"])


@pytest.mark.long("four queries; runtime/savepoint has it without Spark, and the next test on Spark")
def test_state_of_a_table_and_a_part_of_it(spark, tmp_path, monkeypatch):
    monkeypatch.setattr("pillarbox._runtime.spark.savepoint.savepoint._BYTES_IN_FILE", 1)  # so each row gets a file
    begin, part, edited = (f"{tmp_path}/{name}" for name in ("begin", "one", "edited"))
    history = spark.sql(HISTORY)
    write_state(history, begin, "count", key="card", states=STATES, timers="due")
    every = [
        ("a at 50", 1, [1, 2]),
        ("bb at 50", 3, [1, 2, 3]),
        ("bb", 3, [1, 2, 3]),
        ("ccc at 50", 3, [1, 2]),
        ("d", 1, [3]),
    ]
    assert outcome(begin, "bb", "d") == sorted(every)
    assert len([*(tmp_path / "begin" / "state" / "count").glob("*.parquet")]) == 3
    # Of its files, and of the table for people; the second one with another value.
    files = spark.read.parquet(f"{begin}/state/count")
    write_state(files.where("key = 'bb'"), part, "count", like=begin)
    assert outcome(part, "a", "bb") == [("a", 1, [3]), ("bb", 3, [1, 2, 3]), ("bb at 50", 3, [1, 2, 3])]
    state = read_state(spark, begin, "count").where("key != 'bb'").selectExpr("* EXCEPT (seen)", "seen + 10 AS seen")
    write_state(state, edited, "count", like=begin)
    assert [record[:2] for record in outcome(edited)] == [("a at 50", 11), ("ccc at 50", 13)]
    # Another operator is added to the existing ones; column names may have any characters.
    write_state(history.selectExpr("card AS `shop.card`", "seen AS `seen.b``c`"), begin, "other", key="shop.card")
    rows = read_state(spark, begin, "other").select("key", "`seen.b``c`").collect()
    assert sorted(map(tuple, rows)) == [("a", 1), ("bb", 2), ("ccc", 3)]
    assert read_state(spark, begin, "count").count() == 3
    new = f"{tmp_path}/new"
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"directory": begin}, CheckpointMismatchError, "already has state of operator 'count'"),
        ({"df": history.union(history)}, TypeMismatchError, "operator 'count': the key 'a' occurs more than once"),
        (
            {"df": history.selectExpr("nullif(card, 'a') AS card", "* EXCEPT (card)")},
            TypeMismatchError,
            "a row is null",
        ),
    ]
    for changes, error, words in refused:
        arguments = {"df": history, "directory": new, "uid": "count", "key": "card", "states": STATES, **changes}
        with pytest.raises(error, match=words):
            write_state(**arguments)


class Event(NamedTuple):
    kind: str
    amount: int


@dataclass
class Account:
    owner: str
    last: Event | None = None


class Remember(KeyedProcessFunction):
    def open(self, runtime_context):
        self.account = runtime_context.get_state(ValueStateDescriptor("account", Account))
        self.pending = runtime_context.get_map_state(MapStateDescriptor("pending", str, list[Event]))

    def process_element(self, value, ctx):
        if self.account.value() is None:
            self.account.update(Account("new"))
        else:
            yield value.card, self.account.value(), dict(self.pending.items())
        self.account.value().last = Event("paid", value.at)
        self.account.update(self.account.value())
        self.pending.put("all", [Event("paid", value.at)])


def test_state_of_classes_is_structs(spark, tmp_path):
    begin, edited = f"{tmp_path}/begin", f"{tmp_path}/edited"

    def build(env: Any, rows: Any) -> Any:
        return rows.key_by(lambda value: value.card, key_type=Types.STRING()).process(Remember()).uid("remember")

    with ProgramTestHarness(build, parallelism=2) as harness:
        harness.push_all("rows", [row(card=card, at=at) for at, card in enumerate("abc")])
        harness.run_epoch()
        harness.write_savepoint(begin)
    state = read_state(spark, begin, "remember")
    assert [field.dataType.simpleString() for field in state.schema.fields if field.name in ("account", "pending")] == [
        "struct<owner:string,last:struct<kind:string,amount:bigint>>",
        "map<string,array<struct<kind:string,amount:bigint>>>",
    ]
    result = state.where("account.last.amount > 0 AND pending['all'][0].kind = 'paid'").select("key", "account.owner")
    assert sorted(map(tuple, result.collect())) == [("b", "new"), ("c", "new")]
    rows = spark.read.parquet(f"{begin}/state/remember")
    assert rows.where("account.last.amount = 1").count() == 1 == rows.where("exact IS NULL").count() - 2
    write_state(
        state.withColumn("account", col("account").withField("owner", col("key"))), edited, "remember", like=begin
    )

    def again(env: Any, rows: Any) -> Any:
        env.from_savepoint(edited)
        return build(env, rows)

    with ProgramTestHarness(again) as harness:
        harness.push_all("rows", [row(card=card, at=9) for card in "abd"])
        assert sorted(harness.end_input()["output"]) == [
            (card, Account(card, Event("paid", at)), {"all": [Event("paid", at)]}) for at, card in enumerate("ab")
        ]
