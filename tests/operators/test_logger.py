from __future__ import annotations

import logging

from pillarbox import AsyncFunction, KeyedProcessFunction, MapFunction
from pillarbox.testing import ProgramTestHarness, harness_for


class Logs(KeyedProcessFunction):
    def open(self, runtime_context):
        self.log = runtime_context.get_logger("mine")
        self.log.info("opened")

    def process_element(self, value, ctx):
        self.log.warning("got %s at 100%%", value, extra={"value": value, "epoch": "mine"})
        yield value


def test_each_line_says_where_and_when(caplog):
    def program(env, words):
        return words.key_by(len).process(Logs()).name("50% of it")

    caplog.set_level(logging.INFO, "mine")
    with ProgramTestHarness(program, parallelism=2) as harness:
        for word in ("a", "be"):
            harness.push("words", word)
            harness.run_epoch()
    records = [record for record in caplog.records if record.name == "mine"]
    got = [record for record in records if "got" in record.message]
    subtasks = [record.__dict__["subtask"] for record in got]
    assert [record.message for record in got] == [
        f"got a at 100% (operator '50% of it', subtask {subtasks[0]}, epoch 1)",
        f"got be at 100% (operator '50% of it', subtask {subtasks[1]}, epoch 2)",
    ]
    assert {record.__dict__["operator"] for record in records} == {"50% of it"}
    # Fields of the call's own go before.
    assert [(record.__dict__["value"], record.__dict__["epoch"]) for record in got] == [("a", "mine"), ("be", "mine")]
    assert {record.__dict__["epoch"] for record in records if "opened" in record.message} == {0}
    assert got[0].funcName == "process_element"


class LogsToo(MapFunction):
    def open(self, runtime_context):
        self.log = runtime_context.get_logger()

    def map(self, value):
        self.log.error("at %d", value)
        return value


class Asks(AsyncFunction):
    def open(self, runtime_context):
        self.log = runtime_context.get_logger()

    async def async_invoke(self, value):
        self.log.error("at %d", value)
        return [value]


def test_in_a_harness_and_in_an_event_loop(caplog):
    for function in (LogsToo(), Asks()):
        with harness_for(function, subtask=1, parallelism=3) as harness:
            harness.push(5)
            harness.snapshot()
            harness.push(6)
            harness.snapshot()
    name = [record.message for record in caplog.records if record.name == "pillarbox.functions"]
    assert name == [
        "at 5 (operator 'LogsToo', subtask 1, epoch 1)",
        "at 6 (operator 'LogsToo', subtask 1, epoch 2)",
        "at 5 (operator 'Asks', subtask 1, epoch 1)",
        "at 6 (operator 'Asks', subtask 1, epoch 2)",
    ]
