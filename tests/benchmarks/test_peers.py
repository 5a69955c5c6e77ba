from __future__ import annotations

import argparse
import ast
from inspect import Parameter, signature

import pyarrow as pa
import pytest

from benchmarks.cases.rates import async_io, keyed, sessions
from benchmarks.cases.rates.keyed import CountBatches
from benchmarks.cases.rates.sessions import SessionBatches
from benchmarks.harness.process import ROOT, Side
from benchmarks.peers import lookups
from benchmarks.peers.limits import BareLoop
from benchmarks.peers.lookups import Stopwatch, Work, score, sums

BENCHMARKS = ROOT / "benchmarks"


@pytest.mark.parametrize(("case", "kind"), [(keyed, CountBatches), (sessions, SessionBatches)])
def test_the_bare_loop_gives_what_numpy_expects(tmp_path, case, kind):
    arguments = argparse.Namespace(rows=2_000, warm_up_rows=200, keys=50, flink_rows=400, flink_warm_up_rows=40)
    batches = kind(arguments, 1, tmp_path)
    side = BareLoop(case.__name__)
    side.begin("bare", str(tmp_path), {}, {"work": case.WORK})
    collected = [side.step("bare", str(batches.path(number, "parquet")))["results"] for number in range(4)]
    side.close()
    assert collected == [batches.expected(number, "bare") for number in range(4)]
    assert all(results[0] > 0 for results in collected[1:])


@pytest.mark.parametrize("form", [*async_io.GATHER_FORMS, "threads", "bare"])
def test_lookups_by_hand_answer_each_record_once(form):
    batches = [pa.record_batch([pa.array(range(start, start + 30))], names=["id"]) for start in range(0, 90, 30)]
    done = list(getattr(lookups, form)(Work(latency=0, capacity=10), iter(batches)))
    rows = [(row["id"], row["score"]) for batch in done for row in batch.to_pylist()]
    assert sums(rows) == sums((key, score(key)) for key in range(90))


def test_a_stopwatch_tells_the_time_from_the_first_begin_to_the_last_end(tmp_path):
    assert Stopwatch.read_all(tmp_path) is None
    early, late = Stopwatch(str(tmp_path)), Stopwatch(str(tmp_path))
    early.begin()
    late.begin()
    late.end()
    first = Stopwatch.read_all(tmp_path)
    early.end()
    last = Stopwatch.read_all(tmp_path)
    assert first is not None and last is not None and 0 <= first <= last
    Stopwatch.reset_all(tmp_path)
    assert Stopwatch.read_all(tmp_path) is None


@pytest.mark.parametrize(
    "path", [*BENCHMARKS.glob("peers/*.py"), *BENCHMARKS.glob("cases/*/*.py")], ids=lambda p: p.stem
)
def test_arguments_of_sides_differ_from_those_of_the_process(path):
    parameters = {
        name for name, parameter in signature(Side).parameters.items() if parameter.kind is Parameter.KEYWORD_ONLY
    }
    classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    methods = [node for class_ in classes for node in class_.body if isinstance(node, ast.FunctionDef)]
    initializers = [method for method in methods if method.name == "__init__"]
    assert {
        argument.arg for initializer in initializers for argument in initializer.args.args + initializer.args.kwonlyargs
    } & parameters == set()
