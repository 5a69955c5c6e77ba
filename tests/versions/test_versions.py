"""README's first program on other Spark versions, and with workers that have only Spark's own requirements.

A checkpoint from each other version continues under the installed version.

The environment variable ``SPARK_VERSIONS`` lists the versions to test besides the installed version, such as ``4.1
4.2``. By default, these are the versions that `make test-versions` has installed in ``.venvs``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

import pillarbox
from tests.faults.programs import everything_job
from tests.support.sessions import environment_without_spark
from tests.versions import smoke

pytestmark = [pytest.mark.spark, pytest.mark.long("make test-versions runs it, which CI does next to make test")]

ROOT = Path(__file__).resolve().parents[2]
PLACES = ROOT / ".venvs"
SMOKE = Path(__file__).with_name("smoke.py")

UNPAID = ["A2", 660_000]
FIRST = {"batch": [UNPAID], "streaming": [], "epochs": [0, 1], "keys": ["A1", "A2"], "levels": [0, 1]}
SECOND = {**FIRST, "streaming": [UNPAID, ["A4", 1_300_000]], "epochs": [2, 3], "keys": ["A5"]}


def versions() -> list[str]:
    named = os.environ.get("SPARK_VERSIONS")
    if named is not None:
        return named.split()
    return sorted(path.name.partition("-")[2] for path in PLACES.glob("spark-*"))


def environment(**more: str) -> dict[str, str]:
    return environment_without_spark(**{"SPARK_LOCAL_IP": "127.0.0.1", **more})


def answer(command: list[str], env: dict[str, str], cwd: Path) -> Any:
    ran = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
    return json.loads([line for line in ran.stdout.splitlines() if line.startswith("{")][-1])


@pytest.mark.parametrize("version", versions())
def test_the_first_program_on_another_version_and_everything_from_there_to_the_installed_one(version, spark, tmp_path):
    """Runs the batch program, and the streaming program with a restart.

    A program with everything that a checkpoint can hold begins on the other version, and is rescaled and ended on the
    installed one.
    """
    assert (PLACES / f"spark-{version}").is_dir(), f"scripts/setup.sh spark {version} puts it there"
    env = environment(PYTHONPATH=os.pathsep.join(map(str, [PLACES / f"spark-{version}", ROOT / "src", ROOT])))
    lock = (Path(__file__).parent / f"spark-{version}.lock").read_text()
    release = lock.split()[0].removeprefix("pyspark==")
    command = [sys.executable, str(SMOKE), str(tmp_path), "everything"]
    assert answer(command, env, tmp_path) == {"spark": release, **FIRST}
    assert answer(command, env, tmp_path) == {"spark": release, **SECOND}
    operated = smoke.everything(spark, tmp_path)
    pillarbox.rescale(spark, operated.checkpoint, 3)
    right = everything_job.expected(operated.epochs)
    operated.finish(3, right.total())
    assert operated.found() == right
    print(
        f"{right.total()} rows, begun with Spark {release}, rescaled and ended with {spark.version}: as they should be"
    )


def test_py_files_alone_where_python_has_only_what_spark_needs(tmp_path):
    python = PLACES / "worker" / "bin" / "python"
    if not python.exists() and "SPARK_VERSIONS" not in os.environ:
        pytest.skip("scripts/setup.sh worker makes the environment")
    shipped = str(tmp_path / "pillarbox.zip")
    subprocess.run([sys.executable, str(ROOT / "scripts" / "zip_package.py"), shipped], check=True)
    home = tmp_path / "home"
    home.mkdir()
    spark_home = Path(pyspark.__file__).parent
    env = environment(SPARK_HOME=str(spark_home), PYSPARK_PYTHON=str(python), PYSPARK_DRIVER_PYTHON=str(python))
    env.pop("PYTHONPATH", None)
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(tmp_path / "local"),
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    command = [str(spark_home / "bin" / "spark-submit"), "--master", "local-cluster[1,2,1024]", "--py-files", shipped]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    expected = answer([*command, str(SMOKE), str(home)], env, tmp_path)
    assert expected == {"spark": pyspark.__version__, **FIRST}
