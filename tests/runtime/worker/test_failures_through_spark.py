"""Errors of tasks, out of the text in which Spark brings them to the driver."""

from __future__ import annotations

import pytest

from pillarbox import OperatorError
from pillarbox._runtime.spark.failures import unwrapped_failures

BEFORE = "Job aborted due to stage failure: Task 0 failed 4 times: org.apache.spark.api.python.PythonException: "
MESSAGE = "operator 'map: ask' failed at the record (1,): DatabaseError: no such table SQLSTATE: 42P01 (subtask 0)"
FRAMES = '\nTraceback (most recent call last):\n  File "job.py", line 3, in ask'


@pytest.mark.parametrize(
    "after",
    [
        "",
        " SQLSTATE: 38000",
        "\n SQLSTATE: 38000\n\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)\n",
        "\n\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)\n SQLSTATE: 38000",
        " SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: [id = 1]",
        " SQLSTATE: XX000\n\nJVM stacktrace:\norg.apache.spark.SparkException",
    ],
)
@pytest.mark.parametrize("message", [MESSAGE, MESSAGE + FRAMES])
def test_a_message_is_whole_also_if_it_has_a_code_as_sparks_have(message, after):
    with pytest.raises(OperatorError) as caught, unwrapped_failures():
        raise RuntimeError(f"{BEFORE}pillarbox._errors.OperatorError: {message}{after}")
    assert str(caught.value) == message
