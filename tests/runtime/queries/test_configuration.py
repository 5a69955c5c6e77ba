from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox._runtime.spark.session.configuration import masked, settings_of

_HIDDEN = "*********"
_SETTINGS = {
    "spark.sql.streaming.minBatchesToRetain": "50",
    "spark.pillarbox.service.password": "hunter2",
    "spark.pillarbox.accessKey": "AKIA123",
    "spark.pillarbox.service": "https://ann:hunter2@example.org/path",
    "spark.hadoop.fs.s3a.secret.key": "hunter2",
    "spark.executorEnv.TOKEN": "hunter2",
    "spark.executor.memory": "2g",
}


@pytest.mark.parametrize("name", ["spark.x.Secret", "a.passwd", "x.api_key", "x.private-key", "CREDENTIALS", "x.token"])
def test_a_secret_is_masked_by_its_name(name: str) -> None:
    assert masked(name, "hunter2") == _HIDDEN


def test_a_password_in_a_url_is_masked_and_the_rest_is_told() -> None:
    assert masked("x", "jdbc://ann:hunter2@db/1 and s3://key:hunter2@bucket") == (
        f"jdbc://{_HIDDEN}@db/1 and s3://{_HIDDEN}@bucket"
    )
    assert masked("spark.executor.memory", "2g") == "2g"
    assert len(masked("x", "long" * 1000)) == 500


@pytest.mark.parametrize("classic", [True, False])
def test_only_relevant_settings_are_listed(classic: bool) -> None:
    text = "\n".join(f"{name}={value}" for name, value in _SETTINGS.items())
    context = SimpleNamespace(getConf=lambda: SimpleNamespace(toDebugString=lambda: text), defaultParallelism=4)
    conf = SimpleNamespace(get=lambda name, default: default, getAll=_SETTINGS)
    session: Any = SimpleNamespace(conf=conf)
    if classic:
        session.sparkContext, session._jsparkSession = context, None
    settings = settings_of(session)
    assert "hunter2" not in str(settings)
    assert "AKIA123" not in str(settings)
    assert settings.pop("cores", "4") == "4"
    assert settings == {
        "spark.sql.streaming.minBatchesToRetain": "50",
        "spark.pillarbox.service.password": _HIDDEN,
        "spark.pillarbox.accessKey": _HIDDEN,
        "spark.pillarbox.service": f"https://{_HIDDEN}@example.org/path",
        "spark.executor.memory": "2g",
    }


def test_own_settings_of_a_session_are_listed() -> None:
    of_session = {"spark.pillarbox.homes": "off", "spark.sql.session.timeZone": "UTC", "spark.other": "1"}
    context = SimpleNamespace(
        getConf=lambda: SimpleNamespace(toDebugString=lambda: "spark.pillarbox.homes=fork"), defaultParallelism=4
    )
    conf = SimpleNamespace(get=of_session.get)
    session: Any = SimpleNamespace(_jsparkSession=None, sparkContext=context, conf=conf)
    settings = settings_of(session)
    assert (settings["spark.pillarbox.homes"], settings["spark.sql.session.timeZone"]) == ("off", "UTC")
    assert "spark.other" not in settings
