"""The counters of async keyed functions and of budgets."""

from __future__ import annotations

from pillarbox_tools.model.call_counters import BudgetUse, KeyedCalls, counters_of
from tests.model.made import keyed, model, progress


def test_async_keyed_functions_and_budgets_over_some_epochs() -> None:
    query = model()
    for number, (length, key) in enumerate([(7, "'ann'"), (9, "'bob'"), (2, "'cat'")], 1):
        counters = {
            "ask.requests": 5,
            "ask.completed": 4,
            "ask.failed": 0,
            "ask.timed_out": 0,
            "ask.budget.a.b.spent": 10 * number,
            "agent.in_flight": 4 - number,
            "agent.in_flight_max": number,
            "agent.longest_key": length,
            "agent.calls": 10,
            "agent.calls_reused": 1,
            "agent.timed_out": 0,
            "agent.rate_limited_ms": 500,
            "agent.blocked_ms": 0,
            "agent.budget.a.b.granted": 6,
            "agent.budget.a.b.spent": 1,
            "agent.budget.\0agent.stops": 2,
            "agent.seen": 3,
            "plain.calls": 4,
            "plain.completed": 2,
        }
        less = {"agent.in_flight": 1, "agent.longest_key": 1, "agent.rate_limited_ms": 100}
        reports = (
            keyed(subtask=0, counters=counters, hot_keys={"agent": key}),
            keyed(subtask=1, counters=less, hot_keys={"agent": "'dan'"}),
        )
        query.progressed(progress(number, *reports))
    calls, keyed_calls, budgets, others = counters_of(query.snapshot().epochs)
    assert calls == [{"uid": "ask", "epoch": 3, "requests": 5, "completed": 4, "failed": 0, "timed_out": 0}]
    assert keyed_calls == [
        KeyedCalls(
            "agent", in_flight=2, in_flight_max=3, calls=30, calls_reused=3, longest_key=9, hot_key="'bob'",
            rate_limited_ms=1500,
        )
    ]  # fmt: skip
    assert budgets == [BudgetUse("a.b", granted=18, spent=63), BudgetUse("agent", stops=6)]
    assert others == {"agent.seen": 9, "plain.calls": 12, "plain.completed": 6}
