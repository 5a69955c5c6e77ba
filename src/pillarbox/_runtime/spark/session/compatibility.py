"""Checks that Spark has all private names that a query needs.

Names that only workers use are not checked (``homes/worker_environment.py``, ``rows/arrow_frame.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pillarbox._errors import ConfigurationError
from pillarbox._runtime.spark.session.java import WRITER_FIELDS, analyzed_plan, java_session, jvm
from pillarbox._runtime.spark.session.session import session_of
from pillarbox._runtime.spark.session.spark_names import BATCH_ID, PROVIDER_KEY, QUERY_ID, STATE_PARTITIONS


class _Requirement(NamedTuple):
    name: str
    of_java: bool
    is_met: Callable[[Any], bool]


def _setting(name: str) -> _Requirement:
    return _Requirement(f"the setting {name}", False, lambda spark: bool(spark.conf.isModifiable(name)))


def _class(name: str, *fields: str) -> _Requirement:
    def is_met(spark: Any) -> bool:
        loaded = java_session(spark).getClass().getClassLoader().loadClass(name)
        return all(loaded.getDeclaredField(field) is not None for field in fields)

    return _Requirement(f"the class {name}" + (f" with {', '.join(fields)}" if fields else ""), True, is_met)


def _property(name: str, of: str, constant: str) -> _Requirement:
    def is_met(spark: Any) -> bool:
        package = jvm(spark).org.apache.spark.sql.execution.streaming.runtime
        return bool(getattr(getattr(package, of), constant)() == name)

    return _Requirement(f"the local property {name}", True, is_met)


def _shows_aliases(spark: Any) -> bool:
    plan = analyzed_plan(spark.range(0).alias("pillarbox"))
    return str(plan.simpleString(1)).startswith("SubqueryAlias pillarbox")


REQUIREMENTS = (
    _setting(STATE_PARTITIONS),
    _setting(PROVIDER_KEY),
    _property(QUERY_ID, "StreamExecution", "QUERY_ID_KEY"),
    _property(BATCH_ID, "MicroBatchExecution", "BATCH_ID_KEY"),
    _class("org.apache.spark.sql.classic.DataStreamWriter", *WRITER_FIELDS),
    _class("org.apache.spark.sql.execution.streaming.sinks.FileStreamSinkLog"),
    _class("org.apache.spark.sql.execution.streaming.sinks.SinkFileStatus"),
    _Requirement("aliases in plans", True, _shows_aliases),
)


def check_compatibility(spark: Any) -> None:
    missing = [requirement.name for requirement in REQUIREMENTS if not _is_met(requirement, spark)]
    if missing:
        raise ConfigurationError(
            f"this version of pillarbox does not support Spark {spark.version}, which lacks"
            f" {'; '.join(missing)}. Use another version of Spark, or a newer pillarbox"
        )


def _is_met(requirement: _Requirement, spark: Any) -> bool:
    if requirement.of_java and not session_of(spark).has_jvm:
        return True
    try:
        return requirement.is_met(spark)
    except Exception:
        return False
