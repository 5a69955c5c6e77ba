from __future__ import annotations

import functools
import types

import pytest

from pillarbox import KeyedProcessFunction
from pillarbox._datastream.checks.code_search import mentions


def set_timer(timers):
    timers.register_processing_time_timer(timers.current_processing_time() + 1)


def by_way_of_another(timers):
    def inner():
        set_timer(timers)

    inner()


class Helper:
    def set(self, ctx):
        by_way_of_another(ctx.timer_service())


module = types.ModuleType("helpers_of_a_user")
exec("def remind(timers):\n    getattr(timers, 'register_processing_time_timer')(5)\ndef other(): pass", vars(module))
TABLE = {"remind": set_timer}


class Base(KeyedProcessFunction):
    def process_element(self, value, ctx):
        return None


class ByGlobal(Base):
    def process_element(self, value, ctx):
        by_way_of_another(ctx.timer_service())


class ByAttribute(Base):
    def __init__(self):
        self.helper = Helper()

    def process_element(self, value, ctx):
        self.helper.set(ctx)


class ByModule(Base):
    def process_element(self, value, ctx):
        module.remind(ctx.timer_service())


class ByTable(Base):
    def process_element(self, value, ctx):
        TABLE[value](ctx.timer_service())


class ByInheritance(ByGlobal):
    pass


class ByPartial(Base):
    def __init__(self):
        self.remind = functools.partial(set_timer)


class ByProperty(Base):
    @property
    def remind(self):
        return set_timer


class ByWrapper(Base):
    @functools.lru_cache  # noqa: B019
    def remind(self, timers):
        set_timer(timers)


def by_closure():
    remind = set_timer

    def process(value, ctx):
        remind(ctx.timer_service())

    return process


def by_default(value, ctx, remind=set_timer):
    remind(ctx.timer_service())


@pytest.mark.parametrize(
    "function",
    [
        ByGlobal(),
        ByAttribute(),
        ByModule(),
        ByTable(),
        ByInheritance(),
        ByPartial(),
        ByProperty(),
        ByWrapper(),
        by_closure(),
        by_default,
        lambda value, ctx: set_timer(ctx.timer_service()),
    ],
    ids=lambda function: getattr(function, "__name__", type(function).__name__),
)
def test_found_in_what_a_function_reaches(function):
    assert mentions(function, "register_processing_time_timer")


class OtherHelper:
    def set(self, timers):
        timers.register_event_time_timer(5)


class EventTime(Base):
    def __init__(self):
        self.helper = OtherHelper()
        self.itself = self
        self.data = list(range(100_000))

    def process_element(self, value, ctx):
        module.other()
        self.helper.set(ctx.timer_service())


@pytest.mark.parametrize("function", [EventTime(), lambda value, ctx: module.other(), len, str, Base])
def test_not_found_where_it_is_not_reached(function):
    assert not mentions(function, "register_processing_time_timer")
