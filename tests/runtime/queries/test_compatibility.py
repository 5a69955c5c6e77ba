from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox import ConfigurationError
from pillarbox._runtime.spark.session import compatibility
from pillarbox._runtime.spark.session.compatibility import check_compatibility
from pillarbox._runtime.spark.session.spark_names import BATCH_ID, PROVIDER_KEY, QUERY_ID, STATE_PARTITIONS

SETTINGS = {STATE_PARTITIONS, PROVIDER_KEY}


class Frame:
    def __init__(self, plan: str) -> None:
        analyzed = SimpleNamespace(simpleString=lambda fields: plan)
        self._jdf = SimpleNamespace(queryExecution=lambda: SimpleNamespace(analyzed=lambda: analyzed))

    def alias(self, name: str) -> Frame:
        return self


class Class:
    def getDeclaredField(self, name: str) -> str:
        if name not in ("source", "trigger", "extraOptions", "outputMode"):
            raise LookupError(name)
        return name


def spark(*, classic: bool, gone: str = "") -> Any:
    def load(name: str) -> Class:
        if name.endswith(gone or "nothing"):
            raise LookupError(name)
        return Class()

    streaming = SimpleNamespace(
        StreamExecution=SimpleNamespace(QUERY_ID_KEY=lambda: "other" if gone == QUERY_ID else QUERY_ID),
        MicroBatchExecution=SimpleNamespace(BATCH_ID_KEY=lambda: "other" if gone == BATCH_ID else BATCH_ID),
    )
    execution = SimpleNamespace(streaming=SimpleNamespace(runtime=streaming))
    root = SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(sql=SimpleNamespace(execution=execution))))
    result = SimpleNamespace(
        version="9.9.0",
        conf=SimpleNamespace(isModifiable=lambda name: name in SETTINGS - {gone}),
        range=lambda rows: Frame("Range" if gone == "alias" else "SubqueryAlias pillarbox"),
    )
    if classic:
        loader = SimpleNamespace(loadClass=load)
        result._jsparkSession = SimpleNamespace(getClass=lambda: SimpleNamespace(getClassLoader=lambda: loader))
        result.sparkContext = SimpleNamespace(_jvm=SimpleNamespace(org=root))
    return result


@pytest.mark.parametrize("classic", [True, False])
def test_all_is_there(classic: bool) -> None:
    check_compatibility(spark(classic=classic))
    assert len(compatibility.REQUIREMENTS) == 8


@pytest.mark.parametrize(
    ("gone", "name", "of_connect"),
    [
        (STATE_PARTITIONS, f"the setting {STATE_PARTITIONS}", True),
        (QUERY_ID, f"the local property {QUERY_ID}", False),
        (BATCH_ID, f"the local property {BATCH_ID}", False),
        ("DataStreamWriter", "DataStreamWriter with source, trigger, extraOptions, outputMode", False),
        ("FileStreamSinkLog", "the class org.apache.spark.sql.execution.streaming.sinks.FileStreamSinkLog", False),
        ("alias", "aliases in plans", False),
    ],
)
def test_apis_missing_in_spark_are_named(gone: str, name: str, of_connect: bool) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_compatibility(spark(classic=True, gone=gone))
    message = str(caught.value)
    assert message.startswith("this version of pillarbox does not support Spark 9.9.0, which lacks ")
    assert f"{name}. Use another version of Spark" in message and ";" not in message
    if not of_connect:
        check_compatibility(spark(classic=False, gone=gone))
