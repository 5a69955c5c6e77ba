from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from pillarbox import CheckpointMismatchError, KeyedProcessFunction, ListStateDescriptor, Types, ValueStateDescriptor
from pillarbox._graph.savepoint_start import SavepointStart
from pillarbox._runtime.spark.savepoint.source_positions import PositionedSource, find_positions
from pillarbox._state.savepoint.files import LocalSavepoint
from pillarbox.testing import ProgramTestHarness
from tests.data import make_shop as golden
from tests.data.make_savepoint import unpack

CARDS = [f"card {n}" for n in range(golden.CARDS)]
TIMERS = sorted((card, 2_000 + n) for n, card in enumerate(CARDS))


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    unpack(golden.PATH, tmp_path / "savepoint")
    return tmp_path / "savepoint"


def outputs(of: Any, directory: Path, *epochs: dict[str, list[Any]], **how: Any) -> list[dict[str, list[Any]]]:
    aliases = how.pop("aliases", {})

    def build(env: Any, payments: Any, refunds: Any) -> Any:
        env.from_savepoint(directory, **how)
        for former, cls in aliases.items():
            env.add_class_alias(former, cls)
        return of(env, payments, refunds)

    return run(build, *epochs)


def run(build: Any, *epochs: dict[str, list[Any]]) -> list[dict[str, list[Any]]]:
    results = []
    with ProgramTestHarness(build, parallelism=3) as harness:
        for epoch in epochs:
            for source, rows in epoch.items():
                harness.push_all(source, rows)
            results.append({name: sorted(rows, key=repr) for name, rows in harness.run_epoch().items()})
    return results


def spent(function: Any) -> Any:
    def program(env: Any, payments: Any, refunds: Any) -> Any:
        of = golden.shop(env, payments, refunds)
        paid = payments.assign_timestamps_and_watermarks(golden.BY_AT)
        every = paid.union(refunds.assign_timestamps_and_watermarks(golden.BY_AT))
        return {**of, "spent": every.key_by("card", Types.STRING()).process(function).uid("spent")}

    return program


def only(of: Any, *names: str) -> Any:
    return lambda *streams: {name: stream for name, stream in of(*streams).items() if name in names}


def test_the_same_program_goes_on(savepoint: Path) -> None:
    (result,) = outputs(golden.shop, savepoint, {"payments": golden.payments(6_000)})
    for n, (card, total, order, notes, home) in enumerate(result["spent"]):
        more = n == 0  # it had a refund
        assert (card, total, order) == (CARDS[n], 30 * n, golden.Order(n, golden.Money(10 * n, "EUR"), "x"))
        assert notes == [golden.Order(n, golden.Money(10 * n, "USD"))] * (3 + more)
        assert home == golden.Place(f"city {n % 3}", n)
    assert sorted(result["visits"], key=lambda visit: visit[0].shop) == [
        (golden.Place(f"city {n % 3}", n), 3) for n in range(golden.CARDS)
    ]
    assert result["bonus"] == [(card, 10 * n) for n, card in enumerate(CARDS)]


# -- states and fields --


class NewMoney(NamedTuple):
    amount: int
    currency: str
    rate: float = 1.0


@dataclass
class NewOrder:
    number: int
    money: NewMoney
    note: str = ""
    paid: bool = False
    tags: tuple[str, ...] = ()


class MoreStates(KeyedProcessFunction):
    """Declares additional states and fields of classes, which the savepoint does not contain."""

    def open(self, runtime_context):
        self.order = runtime_context.get_state(ValueStateDescriptor("order", golden.Order))
        self.notes = runtime_context.get_list_state(ListStateDescriptor("notes"))
        self.added = runtime_context.get_state(ValueStateDescriptor("added", Types.LONG()))
        self.started = runtime_context.get_state(ValueStateDescriptor("started", Types.LONG(), default=7))
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()).renamed_from("sum"))
        for name in ("old", "home"):
            runtime_context.delete_if_exists(name)

    def process_element(self, payment, ctx):
        yield (
            ctx.get_current_key(),
            self.order.value(),
            list(self.notes),
            self.added.value(),
            self.started.value(),
            self.total.value(),
        )
        self.added.update(1)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp


def test_states_and_fields_come_with_their_defaults_get_other_names_and_go(
    savepoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, cls in (("Money", NewMoney), ("Order", NewOrder)):
        monkeypatch.setattr(golden, name, cls)
    rows = golden.payments(6_000)
    first, second = outputs(
        only(spent(MoreStates()), "spent"), savepoint, {"payments": rows}, {"payments": rows}, **LESS
    )
    for epoch, added in ((first, None), (second, 1)):
        for n, result in enumerate(epoch["spent"]):
            order = NewOrder(n, NewMoney(10 * n, "EUR", 1.0), "x", False, ())
            notes = [NewOrder(n, NewMoney(10 * n, "USD", 1.0), "", False, ())] * (2 + (n == 0))
            assert result == (CARDS[n], order, notes, added, 7, 20 * n)


LESS = {"allow_non_restored_state": True}


class Undeclared(MoreStates):
    def open(self, runtime_context):
        self.notes = runtime_context.get_list_state(ListStateDescriptor("notes"))


def test_undeclared_states_are_refused(savepoint: Path) -> None:
    with pytest.raises(CheckpointMismatchError, match=r"holds value 'sum' of operator .*renamed_from\('sum'\)"):
        outputs(only(spent(Undeclared()), "spent"), savepoint, {"payments": golden.payments(6_000)}, **LESS)


# -- operators --


def test_a_keyed_operator_more(savepoint: Path) -> None:
    def program(env: Any, payments: Any, refunds: Any) -> Any:
        added = payments.key_by("city").process(golden.Bonus()).uid("of cities")
        return {"added": added, **golden.shop(env, payments, refunds)}

    first, second = outputs(program, savepoint, {"payments": golden.payments(6_000)}, {"refunds": refunds(20_000)})
    assert [max(amount for city, amount in first["added"] if city == f"city {n}") for n in range(3)] == [60, 70, 50]
    assert first["bonus"] == [(card, 10 * n) for n, card in enumerate(CARDS)] and len(first["spent"]) == len(CARDS)
    assert second["spent"][1:] == TIMERS


def test_a_keyed_operator_less(savepoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    less, rows = only(golden.shop, "spent", "visits"), {"payments": golden.payments(6_000)}
    with pytest.raises(CheckpointMismatchError, match=r"contains state of 'bonus', but the program has no"):
        outputs(less, savepoint, rows)
    (result,) = outputs(less, savepoint, rows, **LESS)
    assert "the state of operator 'bonus' is left behind: 8 rows" in caplog.text
    assert [count for _, count in result["visits"]] == [3] * golden.CARDS


# -- sources --


def refunds(at: int) -> list[Any]:
    return golden.payments(at)[:1]


def timers(epoch: dict[str, list[Any]]) -> list[Any]:
    return [values for values in epoch["spent"] if len(values) == 2]


def test_a_source_more_a_source_less_a_source_of_another_name(savepoint: Path) -> None:
    def of(*streams: Any) -> Any:
        timed = [stream.assign_timestamps_and_watermarks(golden.BY_AT) for stream in streams]
        every = timed[0].union(*timed[1:]) if len(timed) > 1 else timed[0]
        return {"spent": every.key_by("card", Types.STRING()).process(golden.Spent()).uid("spent")}

    def more(env: Any, more: Any, payments: Any, refunds: Any) -> Any:
        env.from_savepoint(savepoint, **LESS)
        return of(more, payments, refunds)

    both = {"payments": golden.payments(20_000), "refunds": refunds(20_000)}
    waiting, fired = run(more, both, {"more": refunds(20_000)})
    assert not timers(waiting) and timers(fired) == TIMERS

    def less(env: Any, payments: Any) -> Any:
        env.from_savepoint(savepoint, **LESS)
        return of(payments)

    (fired,) = run(less, {"payments": golden.payments(5_001)})
    assert timers(fired) == TIMERS

    def renamed(env: Any, refunds: Any, cards: Any) -> Any:
        env.from_savepoint(savepoint, **LESS, renamed={"payments": "cards"})
        return of(refunds, cards)

    (fired,) = run(renamed, {"refunds": refunds(20_000)})
    assert timers(fired) == TIMERS


@pytest.mark.parametrize(
    ("names", "renamed", "positions", "added", "gone"),
    [
        (["payments", "refunds"], {}, ["payments", "refunds"], [], []),
        (["more", "refunds", "payments"], {}, [None, "refunds", "payments"], ["more"], []),
        (["refunds"], {}, ["refunds"], [], ["payments"]),
        (["refunds", "cards"], {"payments": "cards"}, ["refunds", "payments"], [], []),
    ],
)
def test_positions_of_sources(
    savepoint: Path,
    names: list[str],
    renamed: dict[str, str],
    positions: list[str | None],
    added: list[str],
    gone: list[str],
) -> None:
    manifest = LocalSavepoint(savepoint).manifest
    assert manifest.programs is not None
    then = [source["name"] for source in manifest.programs[0]["sources"]]
    planned = [PositionedSource("kafka", number, known_as=name) for number, name in enumerate(names)]
    start = SavepointStart.of(savepoint, True, renamed, "savepoint")
    result = find_positions(start, manifest.sources, then, planned)
    assert result.positions == [None if name is None else golden.READ[name] for name in positions]
    assert ([*result.added], [*result.gone], result.wrong) == (added, gone, [])


# -- classes --


@dataclass(frozen=True)
class Spot:
    city: str
    shop: int


def spot_of(payment: Any) -> Spot:
    return Spot(payment.city, payment.number)


class Home(KeyedProcessFunction):
    def open(self, runtime_context):
        self.home = runtime_context.get_state(ValueStateDescriptor("home"))
        for name in ("sum", "order", "notes", "old"):
            runtime_context.delete_if_exists(name)

    def process_element(self, payment, ctx):
        yield ctx.get_current_key(), self.home.value()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp


def test_a_class_that_moved_in_values_and_keys(savepoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(golden, "Place")
    moved: Any = ModuleType("moved")
    moved.Spot = Spot
    monkeypatch.setitem(sys.modules, "moved", moved)
    monkeypatch.setattr(Spot, "__module__", "moved")

    def program(env: Any, payments: Any, refunds: Any) -> Any:
        of = spent(Home())(env, payments, refunds)
        visits = payments.key_by(spot_of).process(golden.Visits()).uid("visits")
        return {"spent": of["spent"], "visits": visits}

    rows = {"payments": golden.payments(6_000)}
    with pytest.raises(CheckpointMismatchError, match=r"make_shop.*Place"):
        outputs(program, savepoint, rows, **LESS)
    aliases = {f"{golden.__name__}:Place": Spot}
    (result,) = outputs(program, savepoint, rows, aliases=aliases, **LESS)
    spots = [Spot(f"city {n % 3}", n) for n in range(golden.CARDS)]
    assert result["spent"] == [*zip(CARDS, spots)]
    assert sorted(result["visits"], key=lambda visit: visit[0].shop) == [(spot, 3) for spot in spots]
