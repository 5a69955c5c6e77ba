"""Expected batch results of the simulation's programs, key by key, with each key's records in time order.

An oracle maps the sources' records, by name, to the outputs' records. Ordered outputs are grouped by key.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from itertools import product
from typing import Any

from tests.simulation.programs.program import LETTERS, Inputs
from tests.simulation.service import NEVER
from tests.support.programs import first, second

Values = Iterable[Any]
Oracle = Callable[[Inputs], dict[str, Values]]


def by_key(values: Values, key: Callable[[Any], Any] = first) -> dict[Any, list[Any]]:
    groups: defaultdict[Any, list[Any]] = defaultdict(list)
    for value in values:
        groups[key(value)].append(value)
    return groups


def each_key(function: Callable[[Any, list[Any]], Values], key: Callable[[Any], Any] = first) -> Oracle:
    def oracle(inputs: Inputs) -> dict[str, Values]:
        (values,) = inputs.values()
        return {"output": [result for k, group in by_key(values, key).items() for result in function(k, group)]}

    return oracle


def third(value: Any) -> Any:
    return value[2]


# --- event time ---


def tumbling_sums(values: Values) -> list[Any]:
    sums: Counter[Any] = Counter()
    for key, at, number in values:
        sums[key, at // 50 * 50 + 50] += number
    return [(key, end, total) for (key, end), total in sums.items()]


def all_of_them(inputs: Inputs) -> list[Any]:
    return [value for values in inputs.values() for value in values]


def visits(key: Any, seen: list[Any]) -> Values:
    # Each record moves the key's only timer: it fires after all records.
    yield key, max(second(value) for value in seen) + 200, sorted(seen)


def orders_and_payments(inputs: Inputs) -> dict[str, Values]:
    orders = {order.id for order in inputs["orders"]}
    paid = [(payment.order_id, payment.amount) for payment in inputs["payments"] if payment.order_id in orders]
    return {"paid": paid, "unpaid": orders - {number for number, _ in paid}}


def unpaid_orders(order: Any, events: list[Any]) -> Values:
    due = [event.at + 600_000 for event in events if event.what == "ordered"]
    paid = [event.at for event in events if event.what == "paid"]
    return [(order, now) for now in due if not any(at <= now for at in paid)]


# --- state ---


def history(key: Any, values: list[Any]) -> Iterator[Any]:
    seen: list[Any] = []
    for count, value in enumerate(values, 1):
        seen = [] if value % 7 == 0 else [*seen, value]
        yield key, count, tuple(seen)


def modulo_5(value: int) -> int:
    return value % 5


def two_levels(inputs: Inputs) -> dict[str, Values]:
    seen = [result for key, values in by_key(inputs["source"], modulo_5).items() for result in history(key, values)]
    sums: Counter[int] = Counter()
    for key, count, _ in seen:
        if count % 3:
            sums[key % 2] += key * (count % 3)
    return {"history": seen, "sums": sums.values()}


def diamond(inputs: Inputs) -> dict[str, Values]:
    values = Counter(result for value in inputs["source"] for result in (2 * value, -value, value, value))
    return {"output": [value * count for value, count in values.items()]}


def two_sources(inputs: Inputs) -> dict[str, Values]:
    totals: Counter[int] = Counter()
    for value in [*(left + 1 for left in inputs["left"]), *(right for right in inputs["right"] if right % 2 == 0)]:
        totals[value % 5] += value
    parts = list(totals.items())
    return {"output": [tuple(parts) if len(parts) > 1 else parts[0]] if parts else []}


def every_state(key: Any, values: list[Any]) -> Values:
    numbers: list[int] = []  # since the last clear
    listed: list[int] = []
    counts: dict[int, int] = {}
    for _, number in values:
        numbers.append(number)
        listed.append(number)
        counts[number % 3] = counts.get(number % 3, 0) + 1
        yield key, number, tuple(listed), sorted(counts.items()), sum(numbers), sum(numbers) / len(numbers)
        if number % 5 == 0:
            numbers, listed, counts = [], [], {}
        elif number % 5 == 1:
            listed = []
            counts.pop(0, None)


def dead_letters(inputs: Inputs) -> dict[str, Values]:
    output: list[Any] = []
    letters: list[Any] = []
    for key, values in by_key(inputs["events"]).items():
        good = [value for value in values if value[1] % 4 != 2]
        output += [(*result, index) for index, result in enumerate(every_state(key, good), 1)]
        letters += [(key, value, f"ValueError: {value[1]}") for value in values if value[1] % 4 == 2]
    return {"output": output, "letters": letters}


def seen_so_far(key: Any, values: list[Any]) -> Values:
    return [(key, tuple(map(second, values[:end]))) for end in range(1, len(values) + 1)]


def numbered_changes(key: Any, values: list[Any]) -> Values:
    kinds = [None, *(number % 3 for _, number in values)]
    changed = [number for before, (_, number) in zip(kinds, values) if before != number % 3]
    return [(key, number, index) for index, number in enumerate(changed, 1)]


def side_outputs(inputs: Inputs) -> dict[str, Values]:
    def folded(values: Values, key: Callable[[Any], Any], fold: Callable[[list[Any]], Any]) -> list[Any]:
        return [fold(group) for group in by_key(values, key).values()]

    def total(group: list[Any]) -> int:
        return sum(map(third, group))

    values = inputs["events"]
    return {
        "sums": folded(
            [v for v in values if v[2] % 4],
            first,
            lambda group: (group[0][0], sum(map(second, group)), total(group)),
        ),
        "side": folded(
            [v for v in values if v[2] % 4 == 0], second, lambda group: (group[0][0], group[0][1], total(group))
        ),
    }


def extremes(inputs: Inputs) -> dict[str, Values]:
    groups = by_key(inputs["events"]).items()
    return {
        "min_by": [min(group, key=second) for _, group in groups],
        "max": [(key, max(map(second, group)), group[0][2]) for key, group in groups],
        "sum": [(key, group[0][1], sum(map(third, group))) for key, group in groups],
    }


# --- timers ---


def reminders(key: Any, values: list[Any]) -> Values:
    # First all event-time timers, where timers of even numbers are deleted; then the clock's timers.
    yield from (("timer", key, at) for at in sorted(set(map(second, values))))
    yield from (("late", key, number) for number in sorted(map(third, values)) if number % 6 == 3)


# --- requests ---


def squares(key: Any, values: list[Any]) -> Values:
    return [(key, number, number**2) for _, _, number in values]


def until_a_timeout(inputs: Inputs) -> dict[str, Values]:
    answered = [value for value in inputs["events"] if value[1] < NEVER]
    failed = [value for value in inputs["events"] if value[1] >= NEVER]
    return {"answers": [(key, number, number**2) for key, _, number in answered], "failed": map(Failed, failed)}


class Failed:
    """Placeholder for the result of a failed request."""

    def __init__(self, value: Any) -> None:
        self.value = value


def drained(inputs: Inputs) -> dict[str, Values]:
    answered = [value for value in inputs["events"] if value[2] % 9 != 8]
    sums = [max(squares(key, group)) for key, group in by_key(answered).items()]
    return {"sums": sums, "failed": [Failed(value) for value in inputs["events"] if value[2] % 9 == 8]}


# --- windows ---

Window = tuple[int, int]


def aligned(size: int, slide: int, offset: int = 0) -> Callable[[list[Any]], dict[Window, list[Any]]]:
    def divided(values: list[Any]) -> dict[Window, list[Any]]:
        windows: defaultdict[Window, list[Any]] = defaultdict(list)
        for value in values:
            for start in range(value[1] - (value[1] - offset) % slide, value[1] - size, -slide):
                windows[start, start + size].append(value)
        return windows

    return divided


def cumulated(size: int, step: int) -> Callable[[list[Any]], dict[Window, list[Any]]]:
    def divided(values: list[Any]) -> dict[Window, list[Any]]:
        windows: defaultdict[Window, list[Any]] = defaultdict(list)
        for value in values:
            start = value[1] - value[1] % size
            for end in range(value[1] - value[1] % step + step, start + size + 1, step):
                windows[start, end].append(value)
        return windows

    return divided


def sessions(gap: Callable[[Any], int]) -> Callable[[list[Any]], dict[Window, list[Any]]]:
    def divided(values: list[Any]) -> dict[Window, list[Any]]:
        results: list[tuple[int, int, list[Any]]] = []
        for value in sorted(values, key=second):
            start, end = value[1], value[1] + gap(value)
            if results and start <= results[-1][1]:
                results[-1] = results[-1][0], max(end, results[-1][1]), [*results[-1][2], value]
            else:
                results.append((start, end, [value]))
        return {(start, end): content for start, end, content in results}

    return divided


def windowed(divided: Callable[[list[Any]], dict[Window, list[Any]]], result_of: Callable[..., Any]) -> Oracle:
    return each_key(
        lambda key, values: [result_of(key, window, content) for window, content in divided(values).items()]
    )


def contents(key: Any, window: Window, values: list[Any]) -> Any:
    return key, window, sorted(map(third, values))


def totals(key: Any, window: Window, values: list[Any]) -> Any:
    return key, window, (len(values), sum(map(third, values)))


def fired_once(result_of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *window: (*result_of(*window), 1)


def latest_and_sum(key: Any, window: Window, values: list[Any]) -> Any:
    return key, max(map(second, values)), sum(map(third, values))


def aggregates(key: Any, window: Window, values: list[Any]) -> Any:
    numbers, times = list(map(third, values)), list(map(second, values))
    ends = [min(number for _, at, number in values if at == result) for result in (min(times), max(times))]
    moments = [datetime.fromtimestamp(bound / 1000, timezone.utc) for bound in window]
    total = sum(numbers)
    return (key, *moments, len(numbers), total, total / len(numbers), min(numbers), *ends, len(set(times)))


def stacked(inputs: Inputs) -> dict[str, Values]:
    outputs = windowed(aligned(50, 50), totals)(inputs)["output"]
    most = by_key(outputs, lambda total: (total[1][1] - 1) // 200)
    return {"output": [max(group, key=lambda total: (total[2], total[0])) for group in most.values()]}


# --- two inputs ---


def of_both(inputs: Inputs) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    lefts, rights = by_key(inputs["lefts"]), by_key(inputs["rights"])
    return ((key, lefts.get(key, []), rights.get(key, [])) for key in lefts.keys() | rights.keys())


def balances(inputs: Inputs) -> dict[str, Values]:
    results = []
    for key, lefts, rights in of_both(inputs):
        paid_in = {number: at for _, at, number in lefts}
        timers = {at // 100 * 100 + 150 for _, at, _ in lefts} | {at // 70 * 70 + 150 for _, at, _ in rights}
        before = -1
        for timer in sorted(timers):
            due = sorted(number for number, at in paid_in.items() if before < at <= timer)
            results.append((key, timer, due, sorted(number for _, at, number in rights if before < at <= timer)))
            before = timer
    return {"balances": results, "side": [value[:2] for value in inputs["rights"]]}


def either(inputs: Inputs) -> dict[str, Values]:
    lefts = [(key, at, 2 * number) for key, at, number in inputs["lefts"]]
    rights = [(key, at, 1 - 2 * number) for key, at, number in inputs["rights"] if number % 3]
    side = [value for value in inputs["rights"] if value[2] % 3 == 0]
    return {"sums": tumbling_sums([*lefts, *rights]), "side": side}


def second_mentions(inputs: Inputs) -> dict[str, Values]:
    mentions = [value for value in all_of_them(inputs) if value[2] % 2] + inputs["rights"]
    counts = Counter((value[0], value[2] % 9) for value in mentions)
    return {"output": [mention for mention, count in counts.items() if count >= 2]}


def pairs(lefts: Values, rights: Sequence[Any], lower: int, upper: int, key: Callable[[Any], Any] = first) -> Values:
    others = by_key(rights, key)
    return [(a, b) for a in lefts for b in others.get(key(a), ()) if lower <= b[1] - a[1] <= upper]


def near(lower: int, upper: int) -> Oracle:
    def oracle(inputs: Inputs) -> dict[str, Values]:
        result = pairs(inputs["lefts"], inputs["rights"], lower, upper)
        return {"output": [(a, b, max(a[1], b[1])) for a, b in result]}

    return oracle


def near_columns(lower: int, upper: int, *, outer: bool = False) -> Oracle:
    def oracle(inputs: Inputs) -> dict[str, Values]:
        results = list(pairs(inputs["lefts"], inputs["rights"], lower, upper))
        matched = {a for a, _ in results}
        rows = [(*a, *b[1:]) for a, b in results]
        return {"output": rows + [(*a, None, None) for a in inputs["lefts"] if outer and a not in matched]}

    return oracle


def joins_of_joins(inputs: Inputs) -> dict[str, Values]:
    in_range = [
        (a[0], max(a[1], b[1]), 100 * a[2] + b[2]) for a, b in pairs(inputs["lefts"], inputs["rights"], -30, 90)
    ]
    again = pairs(in_range, inputs["lefts"], -100, 100, lambda value: value[2] % 3)
    return {"output": [(a, b, max(a[1], b[1])) for a, b in again]}


def joined_windows(inputs: Inputs) -> dict[str, Values]:
    joined: list[Any] = []
    grouped: list[Any] = []
    in_sessions: list[Any] = []

    def pair_text(values: list[Any]) -> Any:
        return tuple(sorted(value[2] for value, stream in values if stream == which) for which in (0, 1))

    for _, lefts, rights in of_both(inputs):
        lefts_of, rights_of = aligned(80, 30)(lefts), aligned(80, 30)(rights)
        for window in lefts_of.keys() & rights_of.keys():
            joined += product(lefts_of[window], rights_of[window])
        # Each record with the number of its stream.
        both = [((value, stream), value[1]) for stream, values in ((0, lefts), (1, rights)) for value in values]
        grouped += [pair_text([record[0] for record in group]) for group in aligned(90, 90)(both).values()]
        in_sessions += [
            pair_text([record[0] for record in group]) for group in sessions(lambda value: 40)(both).values()
        ]
    return {"joined": joined, "grouped": grouped, "sessions": in_sessions}


def rules_by_time(inputs: Inputs) -> dict[str, Values]:
    # All rules are there before the first payment.
    rules = {at: number for _, at, number in inputs["rules"]}
    results = []
    for key, values in by_key(inputs["payments"]).items():
        for now in sorted(set(map(second, values))):
            due = sorted(number for _, at, number in values if at == now)
            in_force = max((at for at in rules if at <= now), default=None)
            rules_so_far = sorted([-1, *(number for at, number in rules.items() if at <= now)])
            results.append((key, now, due, in_force, in_force is not None and rules[in_force], rules_so_far))
    return {"payments": results, "side": []}


def plain_rows(name: str, values: Sequence[Any]) -> Sequence[Any]:
    return [tuple(value) for value in values]


def sums_of(*sources: str, times: int = 1) -> Oracle:
    def oracle(inputs: Inputs) -> dict[str, Values]:
        values = [value for source in sources for value in inputs[source]]
        return {"output": [(key, end, times * total) for key, end, total in tumbling_sums(values)]}

    return oracle


def all_again(times: int) -> Oracle:
    return lambda inputs: {"output": all_of_them(inputs) * times}


def windows_of_letters(inputs: Inputs) -> dict[str, Values]:
    events = [value for value in inputs["events"] if value[0] in LETTERS]
    return windowed(aligned(150, 150), contents)({"events": events})


def sessions_of_sessions(inputs: Inputs) -> dict[str, Values]:
    results = [
        contents(key, window, group)
        for key, values in by_key(inputs["events"]).items()
        for window, group in sessions(lambda value: 60)(values).items()
    ]
    # The event time of a window's result is the last moment of the window.
    stamped = [(window[0], window[1] - 1, numbers) for _, window, numbers in results]
    return windowed(sessions(lambda value: 100), contents)({"results": stamped})
