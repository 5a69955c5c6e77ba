"""Healthy queries. Page and doctor must report nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.sick import programs
from tests.sick.faults import cards
from tests.sick.room import Room


@dataclass(frozen=True)
class Healthy:
    """A healthy query.

    Attributes:
        is_live: whether to examine it while it runs.
    """

    name: str
    run: Callable[[Room], None]
    is_live: bool = False


def three_epochs(room: Room) -> None:
    room.start(programs.counted(programs.payments_of(room.spark, room.inbox()), room.marks))
    for epoch in range(3):
        room.inbox().put(*cards(100, at=60 * epoch))
        room.work_off()


def just_started(room: Room) -> None:
    room.start(programs.counted(programs.payments_of(room.spark, room.inbox()), room.marks))


def each_hour(room: Room) -> None:
    room.inbox().put(*cards(100))
    room.start(programs.counted(programs.payments_of(room.spark, room.inbox()), room.marks), processingTime="1 hour")


def available_now(room: Room) -> None:
    for epoch in range(3):
        room.inbox().put(*cards(100, at=60 * epoch))
    query = room.start(programs.counted(programs.payments_of(room.spark, room.inbox()), room.marks), availableNow=True)
    query.awaitTermination()


def stateless(room: Room) -> None:
    payments = programs.payments_of(room.spark, room.inbox())
    room.start(payments.map(lambda payment: (payment.card, payment.amount)).uid("pairs"))
    for _ in range(2):
        room.inbox().put(*cards(100))
        room.work_off()


def sliding_windows(room: Room) -> None:
    room.start(programs.sliding(programs.payments_of(room.spark, room.inbox())))
    for epoch in range(2):
        room.inbox().put(*cards(100, at=600 * epoch))
        room.work_off()


def restarted(room: Room) -> None:
    for run in range(3):
        room.start(programs.counted(programs.payments_of(room.spark, room.inbox()), room.marks))
        room.inbox().put(*cards(100, at=60 * run))
        room.work_off()
        room.stop()


def calls_succeed(room: Room) -> None:
    room.start(programs.asked(programs.payments_of(room.spark, room.inbox())))
    room.inbox().put(*cards(500), *cards(5, 100))
    room.work_off()


def idle_source(room: Room) -> None:
    payments, refunds = room.inbox(), room.inbox("refunds")
    refunds.put(("ann", 10, 1))
    for epoch in range(12):
        payments.put(*cards(30, at=10 * epoch))
    stream = programs.counted(programs.payments_of(room.spark, payments, refunds, idle="1 millisecond"), room.marks)
    room.start(stream, availableNow=True).awaitTermination()


def idle_for_two_minutes(room: Room) -> None:
    three_epochs(room)
    time.sleep(120)


HEALTHY = (
    Healthy("trigger_of_an_hour", each_hour, is_live=True),
    Healthy("three_epochs", three_epochs),
    Healthy("just_started", just_started, is_live=True),
    Healthy("available_now", available_now),
    Healthy("stateless", stateless),
    Healthy("sliding_windows", sliding_windows),
    Healthy("restarted", restarted),
    Healthy("calls_succeed", calls_succeed),
    Healthy("idle_source", idle_source),
    Healthy("idle_for_two_minutes", idle_for_two_minutes, is_live=True),
)
