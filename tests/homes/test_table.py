"""The starter's table of home processes: which runs get homes, which homes end, and which requests are valid."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pillarbox._runtime.spark.homes.processes import OsProcess
from pillarbox._runtime.spark.homes.table import HomeEntry, HomeRequest, HomeTable, TableRefusedError, TableRequestError


class Starter:
    """A starter with a manual clock. Its home processes exist only as table entries."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ended: list[HomeEntry] = []
        self.table = HomeTable(lambda: self.now, self._end)
        self._pids = count(1)

    def _end(self, home: HomeEntry) -> None:
        home.kill_at = self.now + 6.0
        self.ended.append(home)

    def _make(self, request: HomeRequest) -> HomeEntry:
        return HomeEntry(OsProcess(next(self._pids), 0), "name", request.run, request.query, request.secret)

    def home(self, task: str = "a", run: str = "one", **fields: Any) -> tuple[HomeEntry, str]:
        arguments = {"query": "q", "secret": "s", "epoch": 0, "mode": "fork", "most": 8, "idle": 60.0, **fields}
        return self.table.home(HomeRequest.of({"place": task, "run": run, **arguments}), self._make)

    def pid(self, *arguments: Any, **fields: Any) -> int:
        return self.home(*arguments, **fields)[0].process.pid

    def alive(self) -> set[int]:
        return {pid for pid, home in self.table.homes.items() if home.kill_at is None}


def test_a_place_keeps_its_home() -> None:
    starter = Starter()
    assert [starter.home()[1], starter.home()[1]] == ["new", "known"]
    assert starter.pid("b") != starter.pid("a") == starter.pid("a")


def test_a_home_that_has_ended_or_does_not_answer_is_restarted() -> None:
    starter = Starter()
    home, _ = starter.home()
    starter.table.remove(home)
    again, origin = starter.home()
    assert origin == "restarted" and again is not home
    third, origin = starter.home(without=again.process.pid)
    assert origin == "restarted" and starter.ended == [again] and third is not again


def test_a_run_that_is_over_gets_no_home() -> None:
    starter = Starter()
    home, _ = starter.home()
    assert starter.table.end_run("one", []) == [home] and starter.table.is_over("one")
    with pytest.raises(TableRefusedError, match="its query has ended"):
        starter.home("b")
    assert starter.alive() == set()


def test_the_homes_of_a_run_that_does_not_know_itself_end_by_its_secret() -> None:
    starter = Starter()
    first, other = starter.pid("a", "", query="", secret="mine"), starter.pid("b", "", query="", secret="other")
    starter.table.end_run("one", ["mine"])
    assert starter.alive() == {other} and first not in starter.alive()


def test_a_newer_run_of_a_query_supersedes_the_older_one() -> None:
    starter = Starter()
    old = starter.home("a", "old", attempt=5)[0]
    other = starter.pid("c", "other", query="another", attempt=6)
    new = starter.pid("a", "new", attempt=7)
    assert starter.ended == [old] and starter.alive() == {new, other}
    with pytest.raises(TableRefusedError, match="a newer run of its query has begun"):
        starter.home("b", "old", attempt=5)


def test_a_late_task_of_a_run_that_was_never_here_supersedes_nothing() -> None:
    starter = Starter()
    new = starter.pid("a", "new", attempt=7)
    with pytest.raises(TableRefusedError, match="a newer run of its query has begun"):
        starter.home("b", "old", attempt=5)
    assert starter.alive() == {new}


def test_each_run_has_as_many_homes_as_it_may() -> None:
    starter = Starter()
    firsts = {starter.pid(f"a{n}", "one", query="1", most=2) for n in range(8)}
    seconds = {starter.pid(f"b{n}", "two", query="2", most=2) for n in range(8)}
    assert len(firsts) == len(seconds) == 2 and not firsts & seconds
    assert sorted(len(home.places) for home in starter.table.homes.values()) == [4, 4, 4, 4]


def test_a_home_ends_when_its_partition_has_been_elsewhere_for_long() -> None:
    starter = Starter()
    starter.home("moves", epoch=7)
    stays = starter.pid("stays", epoch=7)
    starter.home("stays", epoch=18)
    starter.table.end_moved_homes()
    assert len(starter.alive()) == 2, "eleven epochs may be a second"
    starter.now = 601.0
    starter.home("stays", epoch=17)
    starter.table.end_moved_homes()
    assert starter.alive() == {stays}


def test_visits_that_the_starter_does_not_see_keep_a_home() -> None:
    starter = Starter()
    home, _ = starter.home("seldom", epoch=7)
    other, _ = starter.home("often", epoch=7)
    starter.now = 1000.0
    starter.table.record_visits(other, 1000, 1.0)
    starter.table.record_visits(home, 7, 500.0)
    starter.table.end_moved_homes()
    assert home.kill_at is None
    starter.now = 1200.0
    starter.table.end_moved_homes()
    assert starter.ended == [home]


def adopted(starter: Starter, pid: int, run: str, task: str) -> HomeEntry:
    home = HomeEntry(OsProcess(pid, 0), "name", run, "q", "s", {task})
    starter.table.adopt(home, 5)
    return home


def test_a_home_of_an_earlier_starter_is_adopted_and_said_to_be_so_once() -> None:
    starter = Starter()
    home = adopted(starter, 99, "one", "a")
    assert starter.home("a") == (home, "adopted") and starter.home("a") == (home, "known")
    with pytest.raises(TableRefusedError, match="a newer run"):
        starter.home("b", "old", attempt=4)


def test_a_home_of_an_earlier_starter_ends_if_nobody_can_need_it() -> None:
    starter = Starter()
    starter.table.end_run("over", [])
    late = adopted(starter, 98, "over", "a")
    starter.home("b")
    double = adopted(starter, 99, "one", "b")
    assert starter.ended == [late, double]


def test_an_executor_that_ends_makes_no_home() -> None:
    starter = Starter()
    starter.home()
    starter.table.end_all()
    assert starter.alive() == set()
    with pytest.raises(TableRefusedError, match="the executor is shutting down"):
        starter.home("b")


@pytest.mark.parametrize(
    "fields",
    [
        {"run": 7},
        {"epoch": "seven"},
        {"most": None},
        {"mode": "thread"},
        {"without": "nothing"},
        {"attempt": "last"},
        {"idle": []},
    ],
)
def test_a_request_that_is_not_understood_changes_nothing(fields: dict[str, Any]) -> None:
    starter = Starter()
    with pytest.raises(TableRequestError):
        starter.home(**fields)
    assert starter.table.homes == {}


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.starter = Starter()
        self.newest: dict[str, int] = {}
        self.over: set[str] = set()

    tasks = st.sampled_from("abc")
    queries = st.sampled_from("pq")
    numbers = st.integers(0, 4)

    @rule(task=tasks, query=queries, number=numbers, epoch=st.integers(0, 40), most=st.integers(1, 3))
    def ask(self, task: str, query: str, number: int, epoch: int, most: int) -> None:
        run = f"{query}{number}"
        arguments = {"query": query, "epoch": epoch, "most": most, "attempt": 100 * number, "secret": query}
        is_late = run in self.over or number < self.newest.get(query, -1)
        if is_late:
            with pytest.raises(TableRefusedError):
                self.starter.home(f"{run}{task}", run, **arguments)
            self.over.add(run)
            return
        if query in self.newest and self.newest[query] < number:
            self.over.add(f"{query}{self.newest[query]}")
        self.newest[query] = number
        home, _ = self.starter.home(f"{run}{task}", run, **arguments)
        assert home.run == run and home.kill_at is None and f"{run}{task}" in home.places

    @rule(query=queries, number=numbers)
    def end(self, query: str, number: int) -> None:
        self.starter.table.end_run(f"{query}{number}", [])
        self.over.add(f"{query}{number}")
        if self.newest.get(query) == number:
            del self.newest[query]

    @rule(index=st.integers(0, 5))
    def fail(self, index: int) -> None:
        homes = [*self.starter.table.homes.values()]
        if homes:
            self.starter.table.remove(homes[index % len(homes)])

    @rule(seconds=st.sampled_from([1.0, 700.0]))
    def wait(self, seconds: float) -> None:
        self.starter.now += seconds
        self.starter.table.end_moved_homes()

    @invariant()
    def homes_that_live_are_of_runs_that_live(self) -> None:
        for home in self.starter.table.homes.values():
            assert home.kill_at is not None or home.run not in self.over
            number = int(home.run[1:])
            assert home.kill_at is not None or number >= self.newest.get(home.query, -1)


Machine.TestCase.settings = settings(max_examples=20, stateful_step_count=20)
test_requests_ends_and_failures_in_any_order = Machine.TestCase
