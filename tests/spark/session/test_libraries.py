from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pillarbox
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment
from pillarbox._runtime.spark.homes.settings import MODE, MOST
from tests.homes.libraries import PLACES, TABLE, WORKS
from tests.support.connect import ConnectClient, RaisedInTheClient

pytestmark = pytest.mark.long(
    "a query for each place, and one for each entry that fails; homes/test_libraries.py has no Spark"
)

EPOCHS = 3
SETTINGS = {"workers": {MODE: "off"}, "shared homes": {MODE: "fork", MOST: "2"}}


class UsesAll(KeyedProcessFunction):
    """Uses the library that the key selects, and checks the library's effects on the process."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.kept: dict[int, Any] = {}

    def process_element(self, row, ctx):
        entry = TABLE[row.key]
        if row.key not in self.kept:
            self.kept[row.key] = entry.begin(Path(tempfile.mkdtemp(prefix="of-", dir=self.folder)))
        yield entry.name, bool(entry.look(self.kept[row.key]))


def outcomes(spark: Any, folder: str, setting: str, numbers: list[int]) -> list[tuple[str, bool]]:
    home = Path(folder)
    for name, value in SETTINGS.get(setting, {}).items():
        spark.conf.set(name, value)
    try:
        for _ in range(EPOCHS):
            rows = spark.createDataFrame([(number,) for number in numbers], "key LONG").coalesce(1)
            rows.write.mode("append").parquet(str(home / "in"))
        stream = spark.readStream.schema("key LONG").option("maxFilesPerTrigger", 1).parquet(str(home / "in"))
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(4).set_max_parallelism(4)
        used = env.from_dataframe(stream).key_by("key").process(UsesAll(folder)).uid("uses")
        writer = used.to_dataframe("name STRING, works BOOLEAN").writeStream.format("parquet")
        writer = writer.option("path", str(home / "out")).option("checkpointLocation", str(home / "checkpoint"))
        pillarbox.start(writer.trigger(availableNow=True)).awaitTermination()
        results = spark.read.schema("name STRING, works BOOLEAN").parquet(str(home / "out")).collect()
        return [(row.name, row.works) for row in results]
    finally:
        for name in SETTINGS.get(setting, {}):
            spark.conf.unset(name)


@pytest.fixture
def workers(tmp_path: Path, workers_python: str) -> Iterator[ConnectClient]:
    (tmp_path / "server").mkdir()
    client = ConnectClient(tmp_path / "server", python=workers_python)
    yield client
    client.close()


@pytest.mark.parametrize("setting", PLACES)
def test_the_table(setting: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if setting in ("workers", "Spark Connect"):
        run = request.getfixturevalue("workers" if setting == "workers" else "connect").run
    else:
        request.getfixturevalue("one_attempt")
        session = request.getfixturevalue("spark").newSession()

        def run(function: Any, *args: Any) -> Any:
            return function(session, *args)

    works = [number for number, entry in enumerate(TABLE) if entry.in_place(setting) == WORKS]
    # Failing entries first: Spark does not notice a worker's end while its forked children have its connection.
    for number in {*range(len(TABLE))} - {*works}:
        (tmp_path / str(number)).mkdir()
        with pytest.raises(Exception) as raised:
            run(outcomes, str(tmp_path / str(number)), setting, [number])
        error = raised.value
        text = error.message if isinstance(error, RaisedInTheClient) else str(error)
        ends = "os._exit" in TABLE[number].name and setting == "workers"
        assert ("crashed" if ends else TABLE[number].error) in text, TABLE[number].name
    (tmp_path / "works").mkdir()
    result = run(outcomes, str(tmp_path / "works"), setting, works)
    assert sorted(result) == sorted((TABLE[number].name, True) for number in works for _ in range(EPOCHS))
