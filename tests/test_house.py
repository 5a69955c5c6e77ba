"""The project's structure: imports between layers, public names, effects of imports, and assertions in tests."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import pillarbox
from benchmarks.cases import CASES
from pillarbox._runtime.spark.tools import Tools
from pillarbox_tools import entry

SOURCE = Path(pillarbox.__file__).parent
SRC = SOURCE.parent
TOOLS = SRC / "pillarbox_tools"
TESTS = Path(__file__).parent
HOME = TESTS.parent
Function = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[Path, str, int]  # of a function: its folder, file and line
LONGEST = 500
# From the lowest to the highest, as in docs/architecture.md. Packages of one layer may import each other.
LAYERS = [
    ("mailbox", "_unpickle", "_generics", "_json", "_sizes"),
    ("_errors", "_tracebacks", "_copies", "_rows", "_elements", "_types"),
    ("_time",),
    ("_state",),
    ("_operators",),
    ("_task",),
    ("_graph",),
    ("_reports",),
    ("_runtime",),
    ("_datastream",),
    ("functions", "async_retry_predicates", "_api"),
    ("__main__", "daemon"),
    ("testing",),
]
# The tools are above all of them, and have layers of their own.
TOOLS_LAYERS = [
    ("model", "addresses", "repeating"),
    ("doctor", "export"),
    ("watching", "recording"),
    ("replay",),
    ("dashboard",),
    ("entry",),
    ("cli",),
]
# The packages within a layer, from the lowest to the highest; packages of one row do not know each other. A package
# stands for the modules right in it, and "" for the modules of the layer itself that others import.
PACKAGES = {
    "_state": [("",), ("keys", "types"), ("chunks",), ("heap",), ("log",), ("inspect",), ("savepoint",)],
    "_operators": [
        ("functions", "budgets"),
        ("frame",),
        ("stateless", "dead_letters", "windowing/api", "async_io/api"),
        ("keyed", "windowing", "async_io/loop", ""),
        ("connected", "joins", "columnar", "async_io", "stateful_processor", "calls"),
        ("columnar/joins", "async_keyed"),
    ],
    "_runtime/spark": [
        ("",),
        ("session",),
        ("rows", "tasks", "budgets"),
        ("homes", "checkpoint"),
        ("worker",),
        ("savepoint",),
        ("plan", "reading"),
        ("starting",),
        ("running",),
    ],
    "_datastream": [("",), ("checks",), ("streams",), ("windows", "environment"), ("connected", "grouped")],
}
FILES_IN_A_FOLDER = 16
FILES = [path for package in (SOURCE, TOOLS) for path in sorted(package.rglob("*.py"))]
EXAMPLES = sorted((HOME / "examples" / "shipped").rglob("*.py"))
PUBLIC = {
    "Counter", "Distribution", "Meter", "MetricGroup", "DeadLetter", "AsyncBatchFunction", "AsyncFallback",
    "fallback", "CheckpointedFunction", "FunctionInitializationContext", "FunctionSnapshotContext",
    "OperatorStateStore", "DataStreamSink", "StateDescriptor", "TypeInformation", "BroadcastConnectedStream",
    "BroadcastProcessFunction", "BroadcastState", "BroadcastStream", "KeyedBroadcastProcessFunction",
    "CALL_AGAIN", "Budget", "BudgetExceededError", "CircuitBreaker", "CircuitOpenError",
    "ReadOnlyBroadcastState", "Partitioner", "CoGroupedStreams", "CoGroupedWindows", "IntervalJoin", "JoinedStreams",
    "JoinedWindows", "CoGroupFunction", "FlatJoinFunction", "JoinFunction", "ProcessJoinFunction",
    "AggregateFunction", "AggregatingState", "AggregatingStateDescriptor", "AllWindowFunction", "AllWindowedStream",
    "ArrowAggregateFunction", "AsyncCache", "AsyncDataStream", "AsyncFailure", "AsyncFunction", "AsyncRetryPredicate",
    "AsyncRetryStrategy", "CheckpointMismatchError", "CoFlatMapFunction", "CoMapFunction", "CoProcessFunction",
    "ColumnAggregate", "ConfigurationError", "ConnectedStreams", "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger", "CountEvictor", "CountSlidingWindowAssigner", "CountTrigger",
    "CountTumblingWindowAssigner", "CountWindow", "CumulativeEventTimeWindows", "CumulativeProcessingTimeWindows",
    "Dashboard", "DataStream", "DeltaEvictor", "DeltaTrigger", "Duration", "DynamicEventTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows", "EventTimeSessionWindows", "EventTimeTrigger", "Evictor", "ExchangeError",
    "FilterFunction", "FlatMapFunction", "Function", "GlobalWindow", "GlobalWindows", "KeySelector", "KeyTypeError",
    "KeyedCoProcessFunction", "KeyedProcessFunction", "KeyedStateStore", "KeyedStream", "ListState",
    "ListStateDescriptor", "LocalJob", "MapFunction", "MapState", "MapStateDescriptor", "MergeCallback",
    "MergingWindowAssigner", "MetricsServer", "NeverTrigger", "OperatorError", "OperatorReport", "OutputTag",
    "PillarboxError",
    "ProcessAllWindowFunction", "ProcessFunction", "ProcessWindowFunction", "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger", "Program", "ProgramError", "PurgingTrigger", "QueryCollector", "SavepointError",
    "ReduceFunction",
    "ReducingState", "ReducingStateDescriptor", "Row", "RuntimeContext", "RuntimeExecutionMode",
    "SessionWindowTimeGapExtractor", "SlidingEventTimeWindows", "SlidingProcessingTimeWindows", "StateTtlConfig",
    "StreamExecutionEnvironment", "TaskReport", "Time", "TimeDomain", "TimeEvictor", "TimeWindow", "TimerService",
    "TimestampAssigner", "TimestampedValue", "Trigger", "TriggerResult", "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows", "TypeMismatchError", "Types", "ValueState", "ValueStateDescriptor",
    "WatermarkGenerator", "WatermarkStrategy", "Window", "WindowAssigner", "WindowFunction", "WindowedStream",
    "adopt", "approx_count_distinct_", "avg_", "count_", "dashboard", "export_otel", "first_", "immutable", "last_",
    "GroupedData", "group_by",
    "key_history", "local_session", "max_", "metrics", "min_", "read_state", "record", "rescale", "run", "savepoint",
    "serve_metrics", "start",
    "stop_with_savepoint", "sum_", "write_state",
}  # fmt: skip


PUBLIC_MODULES = {
    "async_retry_predicates": {"empty_result_predicate", "exception_type_predicate", "has_exception_predicate"},
    "daemon": set(),
    "functions": {"async_map", "interval_join", "window_aggregate"},
    "mailbox": {
        "LatencyStatistics", "MAX_PRIORITY", "MIN_PRIORITY", "Mail", "MailOptions", "MailboxClosedError",
        "MailboxController", "MailboxDefaultAction", "MailboxExecutor", "MailboxMetrics", "MailboxProcessor",
        "MailboxState", "MailboxStatistics", "PeriodTimer", "ProbeScheduler", "RejectedExecutionError", "State",
        "Suspension", "TaskMailbox", "WrongThreadError",
    },
    "testing": {
        "FakeRequest", "FakeService", "KeyedOneInputStreamOperatorTestHarness",
        "KeyedTwoInputStreamOperatorTestHarness", "ManualProcessingTimeService", "OneInputStreamOperatorTestHarness",
        "OperatorSnapshot", "ProcessFunctionTestHarnesses", "ProcessingTime", "ProgramSnapshot", "ProgramTestHarness",
        "SimulationError", "StreamRecord", "TooManyRequestsError", "TwoInputStreamOperatorTestHarness", "TwsTester",
        "Watermark", "WatermarkStatus",
        "check_operator", "harness_for", "row", "simulate",
    },
}  # fmt: skip


def layer_of(module: str) -> int:
    package, _, inner = module.partition(".")
    room = inner.partition(".")[0]
    layers = LAYERS if package == "pillarbox" else TOOLS_LAYERS
    assert any(room in rooms for rooms in layers), f"{module} is in no layer"
    height = next(number for number, rooms in enumerate(layers) if room in rooms)
    return height if package == "pillarbox" else len(LAYERS) + height


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def statements(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


@cache
def imported(path: Path) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in statements(parsed(path)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path: Path, *, for_types: bool = True, in_functions: bool = True) -> Iterator[str]:
    tree = parsed(path)
    tested = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    typing = {statement for node in tested for statement in statements(node)}
    for node in imported(path):
        if node in typing and not for_types:
            continue
        if node.col_offset and node not in typing and not in_functions:
            continue
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.Import):
            yield from (name for name in names if name.startswith(("pillarbox.", "pillarbox_tools.")))
        elif node.module in ("pillarbox", "pillarbox_tools"):
            yield from (f"{node.module}.{name}" for name in names)
        elif node.module is not None and node.module.startswith(("pillarbox.", "pillarbox_tools.")):
            yield node.module
            # a module or a package, by its own name
            yield from (f"{node.module}.{name}" for name in names if f"{node.module}.{name}" in _MODULES)


@pytest.mark.slow("it parses all of src")
def test_no_layer_knows_a_higher_one():
    seam = {"pillarbox._api imports pillarbox_tools.entry", "pillarbox.__main__ imports pillarbox_tools.cli"}
    looks_up = {
        f"{name_of(path)} imports {module}"
        for path in FILES
        if path not in (SOURCE / "__init__.py", TOOLS / "__init__.py")
        for module in imports(path)
        if layer_of(name_of(path)) < layer_of(module)
    }
    assert looks_up == seam


def test_the_core_imports_the_tools_in_functions_alone():
    results = {module for path in FILES for module in imports(path, in_functions=False) if path.is_relative_to(SOURCE)}
    assert not any(module.startswith("pillarbox_tools") for module in results)


def test_the_tools_have_all_that_the_core_calls():
    tools: Tools = entry
    assert {name for name in vars(Tools) if not name.startswith("_")} <= set(dir(tools))


@pytest.mark.parametrize("layer", PACKAGES)
def test_no_package_knows_a_higher_one(layer):
    height = {package: row for row, packages in enumerate(PACKAGES[layer]) for package in packages}
    inside = SOURCE / layer
    results = {path.parent.relative_to(inside).as_posix().replace(".", "") for path in inside.rglob("*.py")}
    assert results == set(height), "each package has its place"
    prefix = f"pillarbox.{layer.replace('/', '.')}"
    wrong = []
    for path in inside.rglob("*.py"):
        package = path.parent.relative_to(inside).as_posix().replace(".", "")
        if path.parent == inside and path.name in ("__init__.py", "runtime.py"):
            continue  # the front of the layer
        # The streams of the API return each other.
        for module in imports(path, for_types=False, in_functions=layer != "_datastream"):
            if module == prefix or not module.startswith(prefix + "."):
                continue
            parts = module[len(prefix) + 1 :].split(".")
            other = "/".join(parts)
            other = other if other in height else "/".join(parts[:-1])
            if other != package and height[other] >= height[package]:
                wrong.append(f"{path.relative_to(inside)} imports {module}")
    assert wrong == []


def test_no_folder_is_too_full():
    full = {
        str(folder.relative_to(HOME)): count
        for folder in [folder_ for home in (SOURCE, TOOLS, TESTS) for folder_ in (home, *home.rglob("*/"))]
        if (count := len([path for path in folder.glob("*.py") if path.name != "__init__.py"])) > FILES_IN_A_FOLDER
    }
    assert full == {}


def test_packages_say_what_lives_there():
    """A package's docstring describes contents, permitted imports, starting point and weak spot in about five lines."""
    for layer, rows in PACKAGES.items():
        for package in {"", *(package for row in rows for package in row)}:
            docstring = ast.get_docstring(ast.parse((SOURCE / layer / package / "__init__.py").read_text())) or ""
            assert 4 <= len(docstring.splitlines()) <= 8, f"{layer}/{package}"
            assert "Start\nwith" in docstring or "Start with" in docstring, f"{layer}/{package}"
            assert "Weak spot" in docstring or "Weak\nspot" in docstring, f"{layer}/{package}"


def test_no_file_is_too_long():
    lines = {path.relative_to(SRC): len(path.read_text().splitlines()) for path in FILES}
    assert {str(path): count for path, count in lines.items() if count > LONGEST} == {}


def test_the_public_names():
    assert set(pillarbox.__all__) == PUBLIC
    assert {name for name in dir(pillarbox) if not name.startswith("_")} == PUBLIC | PUBLIC_MODULES.keys()
    star: dict[str, object] = {}
    exec("from pillarbox import *", star)
    assert star.keys() >= PUBLIC
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = pillarbox.Nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_the_public_names_of_the_other_modules(module):
    assert set(importlib.import_module(f"pillarbox.{module}").__all__) == PUBLIC_MODULES[module]


# PySpark's names for its Java objects and Spark Connect messages, and settings outside of its API.
_OF_SPARK = re.compile(
    r"\._(?:jvm|jdf|jwrite|jsparkSession|jsq|jsc|df|gateway|write_stream|explain_string|streamingCheckpointManager)\b"
    r"|spark\.sql\.streaming\.internal|__globPaths__"
)


def test_private_names_of_spark_are_in_one_folder():
    """Only the folder ``session`` uses Spark's private names. It documents their purpose."""
    results = {path.parent.relative_to(SRC).as_posix() for path in FILES if _OF_SPARK.search(path.read_text())}
    assert results == {"pillarbox/_runtime/spark/session"}


def test_examples_use_what_is_public():
    modules = {module for path in EXAMPLES for module in imports(path)}
    assert {module.removeprefix("pillarbox.") for module in modules if module.startswith("pillarbox")} <= {
        *PUBLIC,
        *PUBLIC_MODULES,
        *(f"{module}.{name}" for module, names in PUBLIC_MODULES.items() for name in names),
    }
    assert modules  # else the above would find nothing wrong


def test_modules_that_are_not_public_have_private_names():
    modules = {path.relative_to(SOURCE).with_suffix("").as_posix() for path in FILES if path.is_relative_to(SOURCE)}
    public = {
        module.removesuffix("/__init__").replace("/", ".")
        for module in modules
        if not re.search(r"(^|/)_(?!_init__)", module)
    }
    assert public == {"__init__", "examples", *PUBLIC_MODULES}  # `python -m pillarbox.examples` is a command


def test_names_shared_by_modules_have_no_underscore():
    listing = {path.relative_to(SRC).as_posix() for path in FILES if "\n__all__" in path.read_text()}
    assert listing == {"pillarbox/_api.py"} | {
        f"pillarbox/{module}.py" if (SOURCE / f"{module}.py").exists() else f"pillarbox/{module}/__init__.py"
        for module in PUBLIC_MODULES
    }
    private = [
        f"{path.relative_to(SRC)} imports {node.module}.{alias.name}"
        for path in FILES
        for node in imported(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("pillarbox.", "pillarbox_tools."))
        for alias in node.names
        if alias.name.startswith("_") and alias.name != "__all__"
    ]
    assert private == []


def test_modules_and_classes_have_docstrings():
    without = [
        f"{path.relative_to(SRC)}: {getattr(node, 'name', 'the module')}"
        for path in FILES
        for tree in [parsed(path)]
        for node in [tree, *tree.body]
        if isinstance(node, ast.Module | ast.ClassDef)
        and not getattr(node, "name", "").startswith("_")
        and not ast.get_docstring(node)
    ]
    assert without == []


def test_the_layers_are_those_of_the_page():
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (`.*?`) \|", page.partition("| layer | contents |")[2].partition("\n\n")[0], re.MULTILINE)
    assert [set(re.findall(r"`(\w+)`", row)) for row in rows] == list(map(set, LAYERS))


def test_modules_that_need_no_spark_are_imported_without_it():
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['pyarrow'] = None; import pillarbox, pillarbox.mailbox;"
        "print(pillarbox.__version__, pillarbox.mailbox.TaskMailbox.__name__)\n"
        "try: pillarbox.Row\nexcept ImportError as error: print(error.name); print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[:2] == [pillarbox.__version__, "TaskMailbox"]
    assert done.stdout.split()[2].partition(".")[0] in ("pyspark", "pyarrow")
    assert "which is not installed for" in done.stdout and "pip install 'pillarbox[spark]'" in done.stdout


@pytest.mark.parametrize("module", ["pillarbox", "pillarbox.mailbox"])
def test_a_light_import_stays_light(module):
    heavy = ("pyspark", "pyarrow", "pandas", "numpy", "pillarbox_tools")
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


_EACH_FIRST = """
import importlib, sys
beside = {}  # of each package, what is loaded when it is imported first
for name in sys.argv[1:]:
    package = name.rpartition(".")[0]
    if name in beside.get(package, ()):
        beside[name] = beside[package]  # to import it first is to import its package first
        continue
    for loaded in [module for module in sys.modules if module.partition(".")[0] in ("pillarbox", "pillarbox_tools")]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except Exception as error:
        print(name, repr(error))
    beside[name] = {module for module in sys.modules if module.partition(".")[0] in ("pillarbox", "pillarbox_tools")}
"""


_MODULES = [name_of(path) for path in FILES]


@pytest.mark.long("imports everything again for each module")
def test_every_module_can_be_the_first_that_is_imported():
    """A worker first imports the module that its first pickle names."""
    assert all(name.rpartition(".")[0] in _MODULES[:index] for index, name in enumerate(_MODULES) if index)
    done = subprocess.run([sys.executable, "-c", _EACH_FIRST, *_MODULES], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_commands_for_contributors_exist():
    targets = set(re.findall(r"^([a-z-]+):", (HOME / "Makefile").read_text(), re.MULTILINE))
    targets |= {f"bench-{what}" for what in [*CASES, "list"]}
    text = "\n".join(page.read_text() for page in [*HOME.glob("*.md"), *HOME.glob(".github/**/*.*")])
    asked = set(re.findall(r"(?:`|run: )make ([a-z-]+)", text))
    asked |= {name for named in re.findall(r"target: \[(.*)\]", text) for name in named.split(", ")}
    assert len(asked) > 8 and asked - targets == set()


def asserts(function: Function, lines: list[str]) -> tuple[bool, set[str]]:
    """Return whether a function contains an assertion, and the last names of its calls.

    Functions other than tests may also raise.
    """
    expected = ast.Assert if function.name.startswith("test_") else ast.Assert | ast.Raise
    names = set(re.findall(r"(\w+)\(", "\n".join(lines[function.lineno : function.end_lineno])))
    does = any(isinstance(statement, expected) for statement in statements(function))
    return does or not names.isdisjoint(("raises", "fail", "assert_type")), names


@pytest.mark.long("it parses all tests")
def test_every_test_asserts_something():
    """A call counts if its function asserts, in the file, ``conftest.py``, the tests or `pillarbox.testing`."""
    named: defaultdict[str, list[Place]] = defaultdict(list)
    asserting: set[Place] = set()
    others: dict[Place, tuple[str, set[str]]] = {}
    for path in sorted([*TESTS.rglob("*.py"), *(SOURCE / "testing").rglob("*.py")]):
        lines = path.read_text().splitlines()
        for node in statements(ast.parse("\n".join(lines))):
            if isinstance(node, Function):
                definition = path.parent, path.name, node.lineno
                named[node.name].append(definition)
                does, names = asserts(node, lines)
                if does:
                    asserting.add(definition)
                else:
                    others[definition] = node.name, names

    def is_asserting(folder: Path, file: str, name: str) -> bool:
        near = [
            candidate for candidate in named[name] if candidate[0] == folder and candidate[1] in (file, "conftest.py")
        ]
        return not asserting.isdisjoint(near) or bool(named[name] and asserting.issuperset(named[name]))

    while more := {
        definition
        for definition, (_, names) in others.items()
        if any(is_asserting(*definition[:2], name) for name in names)
    }:
        asserting |= more
        others = {definition: calls for definition, calls in others.items() if definition not in more}
    assert (
        sorted(f"{definition[1]}: {name}" for definition, (name, _) in others.items() if name.startswith("test_")) == []
    )
