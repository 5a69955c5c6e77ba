from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox import ConfigurationError
from pillarbox._runtime.spark.runtime import SparkRuntime

CLASSIC = SimpleNamespace(_jsparkSession=object(), sparkContext=SimpleNamespace(_jsc=None))
CONNECT = SimpleNamespace(is_stopped=True)


@pytest.mark.parametrize("session", [CLASSIC, CONNECT], ids=["classic", "Connect"])
def test_an_environment_of_a_stopped_session_says_so(session: Any) -> None:
    """After a restart of Spark in a notebook, the cell with the environment must run again, too."""
    with pytest.raises(ConfigurationError, match="the environment's SparkSession is stopped: get a new environment"):
        _ = SparkRuntime(session).parallelism
