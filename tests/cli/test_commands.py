from __future__ import annotations

import errno
import io
import json
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from pillarbox import CheckpointMismatchError, SavepointError
from pillarbox._runtime.spark.running import query_command
from pillarbox._runtime.spark.savepoint import adopt as adopt_module
from pillarbox._runtime.spark.savepoint import savepoint as savepoint_module
from pillarbox._runtime.spark.session import folders as files
from pillarbox._runtime.spark.starting import rescale as rescale_module
from pillarbox_tools.cli import all_commands, commands, show


def called(*arguments: str):
    return CliRunner().invoke(all_commands.commands, arguments)


@pytest.fixture
def no_spark(monkeypatch):
    asked = []

    @contextmanager
    def session(master, settings, *, verbose):
        asked.append((master, settings, verbose))
        yield None

    monkeypatch.setattr(commands, "session", session)
    return asked


def test_help_teaches():
    text = called("--help").output
    assert all(name in text for name in ("inspect", "state", "rescale", "Exit codes: 0, success; 1,", "Examples:"))
    for name in ("inspect", "state", "key", "rescale", "savepoint", "adopt", "stop"):
        text = called(name, "--help").output
        assert all(option in text for option in ("CHECKPOINT", "--json", "--master", "--conf KEY=VALUE", "--verbose"))
    assert called("--version").output.startswith("pillarbox, version ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rescale", "cp"], "Missing option '--parallelism'"),
        (["rescale", "cp", "--parallelism", "0"], "0 is not in the range x>=1"),
        (["state", "cp"], "Missing argument 'UID'"),
        (["key", "cp", "count"], "Missing argument 'KEY'"),
        (["inspect", "cp", "--conf", "spark.a"], "'spark.a' is not KEY=VALUE"),
        (["inspect", "cp", "--epoch", "-1"], "-1 is not in the range x>=0"),
        (["inspect", ""], "Invalid value for 'CHECKPOINT': it is empty"),
        (["savepoint", "cp", ""], "Invalid value for 'DIRECTORY': it is empty"),
        (["stop", "cp", "--timeout", "0"], "0.0 is not in the range x>0"),
        (["nothing"], "No such command 'nothing'"),
    ],
)
def test_called_wrongly(no_spark, arguments, words):
    result = called(*arguments)
    assert result.exit_code == 2 and words in result.output and not no_spark


def test_settings_of_spark_and_the_outcome(no_spark, monkeypatch):
    monkeypatch.setattr(rescale_module, "rescale", lambda spark, checkpoint, parallelism: parallelism == 4)
    options = ["--master", "local[3]", "--conf", "spark.a=b=c", "--conf", "spark.d="]
    result = called("rescale", "cp", "--parallelism", "4", "--json", *options)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"checkpoint": "cp", "parallelism": 4, "changed": True}
    assert no_spark == [("local[3]", {"spark.a": "b=c", "spark.d": ""}, False)]
    output = called("rescale", "cp", "--parallelism", "4").stdout
    assert "its parallelism is 4 now; start with set_parallelism(4)" in output
    assert "its parallelism is 5 already" in called("rescale", "cp", "--parallelism", "5").stdout


# In Py4J's format.
JAVAS = """An error occurred while calling o1618.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:\x20
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed
\tat x.y
Caused by: org.apache.spark.SparkNumberFormatException: [B] 'A' cannot be cast. SQLSTATE: 22018
== SQL (line 1, position 1) ==
upper(key) = 1

\tat x
\t... 5 more
"""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (CheckpointMismatchError("checkpoint cp: no"), "Error: checkpoint cp: no\n"),
        (RuntimeError("broken\n\nJVM stacktrace:\n\tat x"), "Error: RuntimeError: broken (--verbose shows more)\n"),
        (
            RuntimeError("[A] Cannot resolve. SQLSTATE: 42K09;\nFilter x\n+- Project"),
            "Error: RuntimeError: [A] Cannot resolve (--verbose shows more)\n",
        ),
        (RuntimeError(JAVAS), "Error: SparkNumberFormatException: [B] 'A' cannot be cast (--verbose shows more)\n"),
    ],
)
def test_errors_of_commands_are_one_sentence(no_spark, monkeypatch, error, words):
    def fails(*args):
        raise error

    monkeypatch.setattr(rescale_module, "rescale", fails)
    result = called("rescale", "cp", "--parallelism", "4")
    assert result.exit_code == 1 and result.stderr.endswith(words) and result.stdout == ""
    result = called("rescale", "cp", "--parallelism", "4", "--verbose")
    assert result.exit_code == 1 and result.exception is error


def test_a_closed_pipe_is_no_error(no_spark, monkeypatch):
    def closed(*args):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(rescale_module, "rescale", closed)
    result = called("rescale", "cp", "--parallelism", "4")
    assert result.exit_code == 1 and result.output == ""


def test_a_condition_that_is_none_is_called_wrongly(no_spark, monkeypatch):
    from pyspark.errors import AnalysisException
    from pyspark.sql.types import LongType, StructField, StructType, VariantType

    from pillarbox._runtime.spark.reading import state_reader

    class Rows:
        schema = StructType([StructField("n", LongType()), StructField("seen", VariantType())])

        def where(self, condition):
            raise AnalysisException(f"[A] {condition} is none. SQLSTATE: 42601;\n'Filter\n+- Project")

    monkeypatch.setattr(state_reader, "read_state", lambda *args: Rows())
    for condition, hint in (
        ("n >", ""),
        ("seen > 1", "; seen is a VARIANT, so cast it, as in seen::long"),
    ):
        result = called("state", "cp", "count", "--where", condition)
        assert result.exit_code == 2 and result.stdout == ""
        message = f"Invalid value for --where: {condition!r}: AnalysisException: [A] {condition} is none{hint}"
        assert message in result.stderr and "Filter" not in result.stderr


def test_a_shell_that_connects_elsewhere(monkeypatch):
    """Spark refuses a master if SPARK_REMOTE is set, so a command must create its own session."""
    from pyspark.sql import SparkSession

    from pillarbox_tools.cli import session as session_module

    stopped = []
    spark: Any = SimpleNamespace(stop=lambda: stopped.append(True))
    monkeypatch.setattr("pillarbox._runtime.spark.session.local_session.check_java", lambda: None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda self: spark)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    with session_module.session("local[1]", {"spark.a": "b"}, verbose=True) as result:
        assert result is spark and not stopped
    assert stopped


def test_without_its_libraries_there_is_a_sentence():
    code = (
        "import sys; sys.modules['click'] = None; sys.argv = ['pillarbox']; import pillarbox_tools.cli as c; c.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "pillarbox: the command line needs click: pip install 'pillarbox[cli]'\n"


OPERATOR = {
    "uid": "count",
    "kind": "process",
    "keys": 12345,
    "namespaces": 0,
    "by_columns": False,
    "timers": {"event": 7},
    "next_timers": {"event": 1_700_000_000_000},
    "watermark": -(2**63),
    "state_bytes": 2_500_000,
    "log_bytes": 900,
    "states": {"seen": "value LONG"},
    "bytes_of": {"seen": 1_500_000},
    "is_plain": True,
    "carried": {"ask": 3},
    "classes": ["shop.model:Order"],
    "largest": [["[b]'AA'", 2048]],
}
FOUND = {
    "checkpoint": "/cp",
    "epoch": 4,
    "oldest_epoch": 0,
    "last_epoch": 5,
    "unfinished_epoch": 6,
    "interrupted_rescale_to": None,
    "parallelism": 2,
    "max_parallelism": 8,
    "programs": [
        {
            "parallelism": 8,
            "max_parallelism": 128,
            "processing_time": True,
            "sources": [{"name": "flights", "columns": ["tail string"]}],
        }
    ],
    "operators": [OPERATOR],
    "changes": {"refused": ["another key"], "doubtful": ["a source"], "carried_out": ["a state is new"]},
}


def shown(checkpoint) -> str:
    console = Console(file=io.StringIO(), width=200)
    show.checkpoint(console, checkpoint)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_checkpoint_for_people():
    text = shown(FOUND)
    for words in (
        "epoch 4 of 0 to 5; parallelism 2",
        "epoch 6 was begun, but is not committed",
        "program: max parallelism 8, 128 key groups, event and processing time",
        "source 'flights': tail string",
        "12,345",
        "7 event",
        "2023-11-14 22:13:20.000Z",
        "none yet",
        "2.4 MiB",
        "900 bytes",
        "seen: value LONG, about 1.4 MiB",
        "'ask': 3 requests are pending",
        "[b]'AA'",
        "2 KiB",
        "refused: another key",
        "doubtful: a source",
        "carried out: a state is new",
        "operator 'count': its state contains objects of shop.model:Order",
    ):
        assert words in text
    text = shown(
        {
            **FOUND,
            "interrupted_rescale_to": 4,
            "programs": None,
            "operators": [],
            "changes": {"refused": [], "doubtful": [], "carried_out": []},
        }
    )
    for words in (
        "a change to parallelism 4 was interrupted",
        "no program is recorded",
        "no operator has state",
        "can resume from this checkpoint",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [(None, ""), (2**63 - 1, "the end"), (10**17, str(10**17)), (0, "1970-01-01 00:00:00.000Z")],
)
def test_times(timestamp, text):
    assert show.time(timestamp) == text


def test_rows_of_state():
    lines = ['{"key":"a","v":[1],"w":"' + 300 * "x" + '"}', '{"key":"b","v":null}', '{"key":"c"}']
    for limit in (2, 0):
        console = Console(file=io.StringIO(), width=100)
        show.rows(console, ["key", "v", "w"], lines, limit)
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
        assert text.count("x") == 200 and "[1]" in text and ("c" in text.replace("rows", "")) is (limit == 0)
        assert ("the first 2 rows" in text) is (limit == 2)


def test_rows_of_state_as_json(no_spark, monkeypatch):
    from pillarbox._runtime.spark.reading import state_reader

    lines = ['{"key":"a","v":[1]}', '{"key":"b","v":null}', '{"key":"c"}']
    rows: Any = SimpleNamespace(
        limit=lambda count: rows,
        selectExpr=lambda text: rows,
        toLocalIterator=lambda: (SimpleNamespace(line=line) for line in lines),
    )
    monkeypatch.setattr(state_reader, "read_state", lambda *args: rows)
    for limit in (2, 0):
        assert (
            called("state", "cp", "count", "--json", "--limit", str(limit)).stdout.splitlines() == lines[: limit or 3]
        )


def test_a_table_that_does_not_fit_is_a_line_for_each_column():
    console = Console(file=io.StringIO(), width=80)
    show.checkpoint(console, FOUND)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert any(line.split() == ["watermark", "none", "yet"] for line in lines)
    assert any(line.split() == ["made", "by", "process"] for line in lines)
    console = Console(file=io.StringIO(), width=40)
    show.rows(console, ["key", "v"], [json.dumps({"key": "\x1b[31mred\u202e", "v": 60 * "x"})], 0)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert r"key  \x1b[31mred\u202e" in text and "\x1b" not in text and text.count("x") == 61


def test_a_pipe_gets_tables_as_wide_as_they_are(no_spark, monkeypatch):
    from pillarbox._runtime.spark.reading import inspection

    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(inspection, "inspect_checkpoint", lambda *args: FOUND)
    monkeypatch.setattr(files, "is_savepoint", lambda *args: False)
    lines = called("inspect", "cp").stdout.splitlines()
    (of_count,) = (line for line in lines if "12,345" in line)
    assert all(words in of_count for words in ("count", "12,345", "7 event", "none yet", "seen: value LONG"))


def test_rows_of_state_in_a_pipe_are_shown_one_by_one_where_a_table_would_be_too_wide(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    for width in (30, 150):
        row = json.dumps({"key": 1, "one": "x" * width, "two": "y" * width})
        show.rows(show.output(), ["key", "one", "two"], [row], 0)
        printed = capsys.readouterr().out.splitlines()
        assert max(map(len, printed)) < 200
        assert any("x" * width in line for line in printed)
        assert ("row 1" in printed[0]) == (width == 150)


def test_pickled_state_has_its_reason():
    pickled = {**OPERATOR, "is_plain": False, "reason_for_pickles": "the type of its key is not known"}
    text = shown({**FOUND, "operators": [pickled]})
    assert "operator 'count': its states are pickled: the type of its key is not known" in text
    assert "plain data" not in text and "pickled" not in shown(FOUND)


def test_an_operator_by_columns_has_its_keys_in_columns(no_spark, monkeypatch):
    from pillarbox._runtime.spark.reading import inspection

    by_columns = {**FOUND, "operators": [{**OPERATOR, "by_columns": True, "keys": 0}]}
    monkeypatch.setattr(inspection, "inspect_checkpoint", lambda *args: by_columns)
    monkeypatch.setattr(files, "is_savepoint", lambda *args: False)
    assert "in columns" in called("inspect", "cp").stdout


def test_a_query_is_asked_to_stop(no_spark, monkeypatch):
    asked = []

    def request_savepoint(spark, checkpoint, directory, *, drain, timeout, notify):
        asked.append((checkpoint, directory, drain, timeout))
        notify("waiting")
        if directory == "bad":
            raise SavepointError("no driver accepted the request")

    opened = SimpleNamespace(epoch=7, files={}, operators=(), drained=True)
    monkeypatch.setattr(query_command, "request_savepoint", request_savepoint)
    monkeypatch.setattr(savepoint_module, "open_savepoint", lambda spark, directory: SimpleNamespace(manifest=opened))
    result = called("savepoint", "cp", "/sp", "--stop", "--drain", "--timeout", "5")
    assert (result.exit_code, result.stderr) == (0, "waiting\n")
    assert result.stdout == "/sp: a savepoint of epoch 7; state of 0 operators, 0 bytes; drained\n"
    result = called("savepoint", "cp", "bad", "--stop")
    assert (result.exit_code, result.stderr) == (1, "waiting\nError: no driver accepted the request\n")
    assert asked == [("cp", "/sp", True, 5.0), ("cp", "bad", False, 600.0)]

    def not_seen(spark, directory):
        raise CheckpointMismatchError(f"{directory} is no savepoint")

    monkeypatch.setattr(savepoint_module, "open_savepoint", not_seen)
    result = called("savepoint", "cp", "/sp", "--stop")  # the driver has reported it
    assert result.exit_code == 0
    assert result.stdout == "/sp: the driver has written the savepoint, on its own file system\n"
    assert json.loads(called("savepoint", "cp", "/sp", "--stop", "--json").stdout)["epoch"] is None
    for arguments, words in (
        (["--drain"], "--drain needs --stop"),
        (["--stop", "--epoch", "3"], "--epoch does not work with --stop"),
        (["--stop", "--timeout", "0"], "0.0 is not in the range x>0"),
    ):
        result = called("savepoint", "cp", "/sp", *arguments)
        assert result.exit_code == 2 and words in result.output


@pytest.mark.usefixtures("no_spark")
def test_adopt_takes_a_processor_of_the_working_directory(monkeypatch, tmp_path):
    calls = []
    savepoint = SimpleNamespace(
        manifest=SimpleNamespace(epoch=3, operators=[SimpleNamespace(uid="transformWithState")]), rows=lambda uid: 7
    )
    monkeypatch.setattr(adopt_module, "adopt", lambda spark, *arguments: calls.append(arguments))
    monkeypatch.setattr(savepoint_module, "open_savepoint", lambda spark, directory: savepoint)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adopted_shop.py").write_text("class Spent:\n    pass\n\nspent = Spent()\n")
    path = list(sys.path)
    result = called("adopt", "cp/", "/sp", "--processor", "adopted_shop:Spent")
    assert result.stdout == "/sp: a savepoint of micro-batch 3; 'transformWithState' has 7 keys\n"
    called("adopt", "cp", "/sp", "--processor", "adopted_shop:spent")
    result = called("adopt", "cp", "/sp", "--json")
    assert json.loads(result.stdout) == {"savepoint": "/sp", "epoch": 3, "operator": "transformWithState", "keys": 7}
    assert [(*places, type(processor).__name__) for *places, processor in calls] == [
        ("cp", "/sp", "Spent"), ("cp", "/sp", "Spent"), ("cp", "/sp", "NoneType")
    ]  # fmt: skip
    for processor, words in (
        ("adopted_shop", "'adopted_shop' is not MODULE:NAME"),
        ("adopted_shop:Other", "AttributeError: module 'adopted_shop' has no attribute 'Other'"),
        ("nowhere_at_all:Spent", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
    ):
        result = called("adopt", "cp", "/sp", "--processor", processor)
        assert result.exit_code == 2 and words in result.output
    assert sys.path == path
