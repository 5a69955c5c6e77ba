from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox._runtime.spark.session.queries import QueryStateCommits


class Flag:
    """A fake AtomicBoolean of Java."""

    def __init__(self) -> None:
        self.value = True

    def get(self) -> bool:
        return self.value

    def set(self, value: bool) -> None:
        self.value = value


def commits(error: Exception | None) -> tuple[QueryStateCommits, Flag]:
    flag = Flag()

    def validate(run: str, batch: int) -> None:
        if error is not None:
            raise error

    states = SimpleNamespace(validateStateStoreCommitForBatch=validate)
    streams = SimpleNamespace(stateStoreCoordinator=lambda: states)
    reporter = SimpleNamespace(shouldValidateStateStoreCommit=lambda: flag)
    execution = SimpleNamespace(
        sparkSession=lambda: SimpleNamespace(streams=lambda: streams),
        runId=lambda: "run",
        progressReporter=lambda: reporter,
    )
    query: Any = SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: execution))
    return QueryStateCommits(query), flag


def test_a_batch_is_complete_or_not() -> None:
    for error, complete in ((None, True), (RuntimeError("[STATE_STORE_COMMIT_VALIDATION_FAILED] 1 of 2"), False)):
        checked, flag = commits(error)
        assert checked.are_complete(3) is complete
        assert flag.get() is False  # Spark does not check it again
        assert checked.are_complete(3) is True  # a batch without state


def test_a_query_that_is_stopped_has_read_no_part_of_its_batch() -> None:
    checked, _ = commits(RuntimeError("java.lang.InterruptedException"))
    with pytest.raises(RuntimeError, match="InterruptedException"):
        checked.are_complete(3)
