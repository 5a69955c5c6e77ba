from __future__ import annotations

import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from pillarbox import ConfigurationError
from pillarbox._runtime.spark.session import local_session, requirements
from pillarbox._runtime.spark.session import parallelism as session


class FakeConf(dict[str, str]):
    def get(self, name, default=None):
        return super().get(name, default)


class FakeSession:
    def __init__(self, **conf):
        self.conf = FakeConf({name.replace("__", "."): value for name, value in conf.items()})


def test_pandas_3_is_refused(monkeypatch):
    import pandas

    monkeypatch.setattr(pandas, "__version__", "3.0.1")
    with pytest.raises(ConfigurationError, match=r"pandas 3\.0\.1 is too new: .*pip install 'pandas<3'"):
        requirements.check_packages()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(ConfigurationError, match="pip install 'protobuf'"):
        requirements.check_packages()


@pytest.mark.parametrize("installed", [True, False])
def test_the_daemon_of_workers_is_ours_where_it_will_find_pillarbox(installed, tmp_path, monkeypatch):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    monkeypatch.setattr(sys, "executable", sys.executable if installed else str(tmp_path / "bare" / "bin" / "python"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert local_session._daemon_finds_pillarbox() is installed
    monkeypatch.setenv("PYTHONPATH", str(Path(local_session.__file__).parents[4]))
    assert local_session._daemon_finds_pillarbox()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")  # of spark-submit, whose --py-files are no part of the environment
    assert not local_session._daemon_finds_pillarbox()


@pytest.mark.parametrize(
    ("banner", "version"), [('openjdk version "11.0.2"', "11.0.2"), ('java version "1.8.0_392"', "1.8.0_392")]
)
def test_an_old_java_is_refused(monkeypatch, tmp_path, banner, version):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=f"{java}: Java {version} is too old: Spark 4 needs Java 17 or newer"):
        requirements.check_java()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\n")
    requirements.check_java()


def test_a_missing_java_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="needs Java 17 or newer: install it, or set JAVA_HOME"):
        requirements.check_java()


def test_an_environment_with_the_same_base_python_is_another_one(tmp_path):
    venv.create(tmp_path / "other", with_pip=False, symlinks=True)
    other = tmp_path / "other" / "bin" / "python"
    assert other.resolve() == Path(sys.executable).resolve()
    with pytest.raises(
        ConfigurationError, match=f"workers run {other}, but this program runs {sys.executable}: set os.en"
    ):
        requirements.check_python(str(other))
    requirements.check_python(sys.executable)
    alias = tmp_path / "python3"
    alias.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    alias.chmod(0o755)
    requirements.check_python(str(alias))
    with pytest.raises(ConfigurationError, match="workers run nothing"):
        requirements.check_python("nothing")


@pytest.mark.parametrize("setting", ["true", "True"])
def test_speculation_is_refused(setting):
    with pytest.raises(ConfigurationError, match=r"spark\.speculation is true: 2 attempts of one task"):
        requirements.check_requirements(FakeSession(spark__speculation=setting), streaming=True)  # type: ignore[arg-type]


def test_workers_without_a_daemon_are_refused():
    without = FakeSession(spark__python__use__daemon="false")
    with pytest.raises(ConfigurationError, match=r"spark\.python\.use\.daemon is false: PySpark's daemon owns"):
        requirements.check_requirements(without, streaming=True)  # type: ignore[arg-type]
    requirements.check_requirements(without, streaming=False)  # type: ignore[arg-type]


def test_push_based_shuffle_is_refused():
    """With push-based shuffle, Spark does not compare the output of repeated tasks."""
    with pytest.raises(ConfigurationError, match=r"spark\.shuffle\.push\.enabled is true: if an executor is lost"):
        requirements.check_requirements(FakeSession(spark__shuffle__push__enabled="true"), streaming=True)  # type: ignore[arg-type]
    requirements.check_requirements(FakeSession(spark__shuffle__push__enabled="true"), streaming=False)  # type: ignore[arg-type]


BY_CORES = "the cluster's number of cores"


@pytest.mark.parametrize(
    ("conf", "parallelism", "reason"),
    [
        (
            {"spark__sql__shuffle__partitions": "7", "spark__master": "local[3]"},
            7,
            "as set by spark.sql.shuffle.partitions",
        ),
        (
            {"spark__sql__shuffle__partitions": "1000", "spark__master": "local[3]"},
            128,
            "the largest default, because spark.sql.shuffle.partitions is 1000",
        ),
        ({"spark__sql__shuffle__partitions": "auto", "spark__master": "local[3]"}, 3, BY_CORES),
        (
            {
                "spark__dynamicAllocation__enabled": "true",
                "spark__dynamicAllocation__maxExecutors": "3",
                "spark__executor__cores": "4",
            },
            12,
            BY_CORES,
        ),
        (
            {"spark__dynamicAllocation__enabled": "True", "spark__default__parallelism": "2"},
            16,
            "because the cluster's number of cores is unknown",
        ),
        ({"spark__sql__shuffle__partitions": "200", "spark__master": "local[3, 4]"}, 3, BY_CORES),
        ({"spark__master": "local[64]"}, 16, BY_CORES),
        ({"spark__master": "yarn"}, 16, "because the cluster's number of cores is unknown"),
        ({"spark__master": "yarn", "spark__executor__instances": "3", "spark__executor__cores": "2"}, 6, BY_CORES),
        ({"spark__master": "k8s", "spark__default__parallelism": "5"}, 5, BY_CORES),
        # Two of three executors have registered.
        (
            {
                "spark__master": "k8s",
                "spark__default__parallelism": "4",
                "spark__executor__instances": "3",
                "spark__executor__cores": "2",
            },
            6,
            BY_CORES,
        ),
    ],
)
def test_default_parallelism(conf, parallelism, reason):
    spark: Any = FakeSession(**conf)
    assert session.default_parallelism(spark) == (parallelism, reason)
