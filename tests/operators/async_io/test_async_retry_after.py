from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from email.message import Message
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest

import pillarbox.functions as PF
from pillarbox import AsyncRetryStrategy, OperatorError
from pillarbox._operators.async_io.api.options import AsyncOptions
from pillarbox._operators.async_io.api.retry import retry_after_millis
from pillarbox._operators.async_io.loop import workers
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox.testing import OneInputStreamOperatorTestHarness as Harness
from tests.support.nodes import node


class Refused(Exception):
    def __init__(self, **attributes: Any) -> None:
        super().__init__("429")
        vars(self).update(attributes)


@pytest.mark.parametrize(
    ("attributes", "millis"),
    [
        ({}, 0),
        ({"retry_after": 2}, 2000),
        ({"retry_after": 0.25}, 250),
        ({"retry_after": timedelta(seconds=3)}, 3000),
        ({"retry_after": "1"}, 1000),
        ({"retry_after": -5}, 0),
        ({"retry_after": float("inf")}, 0),
        ({"retry_after": "soon"}, 0),
        ({"retry_after": None, "headers": {"Retry-After": "7"}}, 7000),
        ({"headers": {"retry-after": "7"}}, 7000),
        ({"headers": None}, 0),
        ({"response": SimpleNamespace(headers={"Retry-After": "9"})}, 9000),
        ({"response": None}, 0),
        ({"headers": "no headers"}, 0),
    ],
)
def test_attributes_of_errors_with_a_retry_time(attributes: dict[str, Any], millis: int) -> None:
    assert retry_after_millis(Refused(**attributes)) == millis


def test_the_retry_time_of_a_urllib_error() -> None:
    headers = Message()
    headers["Retry-After"] = "4"
    assert retry_after_millis(HTTPError("http://localhost", 429, "Too Many Requests", headers, None)) == 4000


def test_a_date_is_a_time_from_now() -> None:
    later = Refused(headers={"Retry-After": formatdate(time.time() + 3600, usegmt=True)})
    assert 3_500_000 < retry_after_millis(later) <= 3_600_000
    assert retry_after_millis(Refused(headers={"Retry-After": formatdate(0, usegmt=True)})) == 0


def test_the_longer_one_of_backoff_and_retry_after_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    asks = iter([Refused(retry_after=30), Refused(retry_after=0.001), Refused()])
    sleep = asyncio.sleep

    async def ask(value: Any) -> Any:
        if error := next(asks, None):
            raise error
        return value

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(workers, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": note}))
    retry = AsyncRetryStrategy.fixed_delay(3, "2 seconds")
    with Harness(node(AsyncWaitOperator, "ask", ask, AsyncOptions("ask", retry=retry, timeout=None))) as harness:
        harness.push("a")
        harness.drain()
        assert harness.get_output() == ["a"]
    assert pauses == [30, 2, 2]


def test_a_result_that_does_not_fit_names_its_record() -> None:
    from pyspark.sql.types import DoubleType, StringType, StructField, StructType

    columns = StructType([StructField("amount", DoubleType()), StructField("label", StringType())])
    call = PF._AsyncRowCall(asyncio.sleep, None, columns, batched=False, takes_failures=False)
    with pytest.raises(OperatorError, match=r"sleep returned .* for the record \(4711, 'x'\) and the columns amount, "):
        call.combine((4711, "x"), {"amount": 1.0, "lable": "new"})
