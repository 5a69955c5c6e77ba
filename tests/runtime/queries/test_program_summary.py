from __future__ import annotations

import gc
import weakref
from typing import Any, cast

from pillarbox import MapFunction
from pillarbox._graph.description import describe_programs
from pillarbox._graph.layout import Layout
from pillarbox._runtime.spark.plan import registry
from pillarbox.testing import ProgramTestHarness


class Model(MapFunction):
    def __init__(self) -> None:
        self.weights = bytes(1_000)

    def map(self, value):
        return value


def test_a_planned_program_is_not_kept(monkeypatch):
    monkeypatch.setattr(registry, "_newest", registry._newest.copy())
    model = Model()

    def build(env: Any, rows: Any) -> Any:
        return rows.map(model).key_by(lambda value: value).sum(1).uid("sum")

    with ProgramTestHarness(build) as harness:
        program = harness._program
        layout = Layout(8, 64)
        described = describe_programs([program], [layout])
        registry.register(cast("Any", harness), program, "secret")
        number, reference = program.id, weakref.ref(program)
    del harness, program
    gc.collect()
    assert reference() is None
    planned = registry._programs[number]
    facts = planned.summary
    assert planned.secret == "secret" and facts.description.uids == ["sum"] and facts.begins is None
    assert describe_programs([facts.description], [layout]) == described
    assert described["programs"][0]["parallelism"] == 8 == described["programs"][0]["operators"][0]["parallelism"]
