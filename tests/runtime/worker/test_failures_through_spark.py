from __future__ import annotations

import pytest

from pillarbox import OperatorError
from pillarbox._runtime.spark.failures import end_with_message, failures_in_worker, unwrapped_failures

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


class _Classic(Exception):
    def __init__(self, text: str) -> None:
        self._desc = text

    def __str__(self) -> str:
        return self._desc


@pytest.mark.parametrize("location", ["", "\n  (subtask 2, key 7)"])
@pytest.mark.parametrize("details", ["", FRAMES, "\nline 2 of a message\nfailures: 3" + FRAMES])
def test_the_text_of_a_failed_query_ends_with_the_sentence(location, details):
    sentence = "operator 'map: ask' failed at the record (1,): DatabaseError: no such table SQLSTATE: 42P01"
    text = f'{sentence}{location}{details}\nfailure: {{"error": "OperatorError", "record": "(1,)"}}\n'
    error = _Classic(
        "[STREAM_FAILED] Query [id = 1] terminated with exception: pillarbox._errors.OperatorError:"
        f" {text} SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming Query ===\n"
        "Identifier: [id = 1]\n\nLogical Plan:\n~Project [k#1]\n+- ~Filter\n"
    )
    end_with_message(error)
    whole = "pillarbox.OperatorError: " + sentence + location.replace("\n ", "")
    first, *rest = str(error).splitlines()
    before = "[STREAM_FAILED] Query [id = 1] terminated with exception:"
    assert first == (f"{before} {whole.replace('.Op', '._errors.Op')}" if details else before)
    assert rest == [*details.splitlines()[1:], whole]


def test_the_text_of_another_failure_stays():
    error = _Classic("[STREAM_FAILED] the disk is full\n=== Streaming Query ===")
    end_with_message(error)
    assert str(error) == "[STREAM_FAILED] the disk is full\n=== Streaming Query ==="
    end_with_message(error, "pillarbox.CheckpointMismatchError: a file is gone")
    assert str(error) == "[STREAM_FAILED] the disk is full\npillarbox.CheckpointMismatchError: a file is gone"


def test_an_error_with_half_a_character_reaches_spark(monkeypatch):
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "1")
    error = ValueError("\ud83d is half an emoji")
    error.__notes__ = ["the note has \udcff"]  # type: ignore[attr-defined]
    with pytest.raises(OperatorError) as caught, failures_in_worker("map", 0):
        raise error
    text = caught.value.args[0]
    assert "\\ud83d is half an emoji" in text and "the note has \\udcff" in text
    text.encode()
