"""Faulty queries: each breaks one rule of the doctor."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.see.queries import counts, slow_sink
from tests.sick import programs
from tests.sick.programs import DAY, DIE, ERROR, FAIL_ONCE, HANG, SLOW
from tests.sick.room import Room
from tests.support.sessions import setting_of_application


@dataclass(frozen=True)
class Fault:
    """A faulty query.

    Attributes:
        rule: the broken rule.
        remedy: regular expression for the finding's message.
        run: starts the query, and causes the fault.
        is_live: whether to examine it while it runs.
        also: further rules that it breaks for the same reason.
    """

    rule: str
    remedy: str
    run: Callable[[Room], None]
    is_live: bool = False
    also: tuple[str, ...] = ()


def cards(count: int, amount: int = 10, at: int = 0) -> list[tuple[str, int, int]]:
    return [(f"c{number % 30}", amount, at + number % 5) for number in range(count)]


def _counting(room: Room, **options: int | float) -> None:
    room.start(programs.counted(programs.payments_of(room.spark, room.inbox()), room.marks, **options))


def few_epochs_kept(room: Room) -> None:
    session = room.spark.newSession()
    session.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    room.start(programs.counted(programs.payments_of(session, room.inbox()), room.marks))


def many_partitions(room: Room) -> None:
    room.start(programs.counted(programs.payments_of(room.spark, room.inbox(), parallelism=40), room.marks))


def new_workers(room: Room) -> None:
    with setting_of_application(room.spark, "spark.python.worker.reuse", "false"):
        _counting(room)


def little_memory(room: Room) -> None:
    # No worker starts meanwhile: one that Spark keeps within this limit could not even import Arrow.
    with setting_of_application(room.spark, "spark.executor.pyspark.memory", "64m"):
        _counting(room)
    room.inbox().put(*cards(100))
    room.work_off()


def hangs(room: Room) -> None:
    _counting(room)
    for epoch in range(3):
        room.inbox().put(*cards(50, at=epoch))
        room.work_off()
    room.inbox().put(("stuck", HANG, 9))


def silent(room: Room) -> None:
    _counting(room)
    room.inbox().put(*cards(50))
    room.work_off()


def killed(room: Room) -> None:
    room.inbox().put(*cards(50))
    command = [sys.executable, "-m", "tests.sick.driver", str(room.folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr


def crashes(room: Room) -> None:
    room.inbox().put(("broken", ERROR, 1))
    for _ in range(4):
        query = room.start(programs.counted(programs.payments_of(room.spark, room.inbox()), room.marks))
        try:
            query.awaitTermination()
        except Exception:
            continue
        raise AssertionError("it is to fail")


def future(room: Room) -> None:
    _counting(room)
    room.inbox().put(*cards(50), ("clock", 10, 4_000_000_000))
    room.work_off()


def behind(room: Room) -> None:
    inbox = room.inbox()
    room.start(
        programs.counted(programs.payments_of(room.spark, inbox), room.marks, seconds=0.1),
        processingTime="200 milliseconds",
    )
    for epoch in range(5):
        inbox.put(*cards(50, at=epoch), *((f"slow {card}", SLOW, epoch) for card in range(12)))
    room.work_off()


def heavy(room: Room) -> None:
    payments = programs.payments_of(room.spark, room.inbox(), parallelism=4)
    room.start(programs.counted(payments, room.marks, seconds=3.0))
    room.inbox().put(*(("whale", 10, 1) for _ in range(3000)), *cards(300), ("whale", SLOW, 2))
    room.work_off()


def skewed(room: Room) -> None:
    payments = programs.payments_of(room.spark, room.inbox(), parallelism=4)
    room.start(programs.counted(payments, room.marks, seconds=4.0))
    for epoch in range(4):
        room.inbox().put(*cards(300, at=epoch), ("slow", SLOW, epoch))
        room.work_off()


def stuck(room: Room) -> None:
    payments, refunds = room.inbox(), room.inbox("refunds")
    room.start(programs.counted(programs.payments_of(room.spark, payments, refunds), room.marks))
    refunds.put(("ann", 10, 1))
    for epoch in range(12):
        payments.put(*cards(30, at=10 * epoch))
    room.work_off()


def timers(room: Room) -> None:
    _counting(room, timers=400)
    room.inbox().put(*cards(60))
    room.work_off()


def repeats(room: Room) -> None:
    _counting(room)
    for epoch in range(4):
        room.inbox().put(*cards(30, at=epoch), (f"trip-{epoch}", FAIL_ONCE, epoch))
        room.work_off()


def homes_die(room: Room) -> None:
    _counting(room)
    for minute in range(4):
        room.inbox().put(*cards(30, at=minute), (f"die-{minute}", DIE, minute))
        room.work_off()
        time.sleep(61 if minute < 3 else 0)


def late(room: Room) -> None:
    room.start(programs.by_minute(programs.payments_of(room.spark, room.inbox())))
    room.inbox().put(*cards(300, at=DAY // 1000))
    room.work_off()
    room.inbox().put(*cards(300, at=DAY // 1000 + 300), *cards(60, at=0))
    room.work_off()


def letters(room: Room) -> None:
    room.start(programs.guarded(programs.payments_of(room.spark, room.inbox()), room.marks))
    room.inbox().put(*cards(300), *cards(60, ERROR))
    room.work_off()


def calls_fail(room: Room) -> None:
    room.start(programs.asked(programs.payments_of(room.spark, room.inbox())))
    room.inbox().put(*cards(300), *cards(60, 100))
    room.work_off()


def sink_is_slow(room: Room) -> None:
    room.inbox().put(*((f"c{number % 7}", 1, number // 1000) for number in range(20_000)))
    room.query = slow_sink(counts(room.spark, room.inbox()), Path(room.checkpoint), 0.8)
    room.work_off()


def copies(room: Room) -> None:
    room.start(programs.in_carts(programs.payments_of(room.spark, room.inbox())))
    room.inbox().put(*cards(2000))
    room.work_off()


FAULTS = (
    # Faults that take minutes are started first, and examined last.
    Fault("driver_gone", r"Driver silent for \d.*start it again", killed, is_live=True),
    Fault("silent_source", r"No input for \d+ min.*check the source and its producers", silent, is_live=True),
    Fault("restarting_homes", r"home processes were restarted in .*a function crashes or calls os\._exit", homes_die,
          also=("repeated_tasks",)),
    Fault("retention", r"Spark keeps 2 epochs.*minBatchesToRetain to 10", few_epochs_kept),
    Fault("partitions_and_cores", r"40 state partitions and 4 cores.*pillarbox rescale", many_partitions),
    Fault("worker_reuse", r"spark\.python\.worker\.reuse is false.*set it to true", new_workers),
    Fault("executor_memory", r"a worker process uses \d+% of its 64 MiB.*raise spark\.executor\.pyspark\.memory",
          little_memory),
    Fault("hung_epoch", r"Epoch 3 has run for .*: 1 of \d tasks of 'count', on localhost, is not done.*a timeout",
          hangs, is_live=True),
    Fault("crash_loop", r"Started 4 times.*an amount below 0.*check the newest failure", crashes),
    Fault("watermark_in_the_future", r"Event time of 'count' is at 21\d\d.*drop or correct such records", future,
          is_live=True),
    Fault("falling_behind", r"An epoch takes .*the trigger's interval is 0\.2 s.*raise the parallelism", behind,
          is_live=True),
    Fault("heavy_keys", r"key 'whale' has \d+%.*aggregate before key_by", heavy, also=("skewed_tasks",)),
    Fault("skewed_tasks", r"subtask \d of 'count' was busy for .*check its heavy keys", skewed),
    Fault("stuck_watermark", r"event time of 'count' has not advanced in .*'refunds.*with_idleness", stuck),
    Fault("piling_timers", r"the keys of 'count' have \d+ timers each.*keep one timer per key", timers),
    Fault("repeated_tasks", r"Spark has repeated \d+ tasks.*log of the executors", repeats),
    Fault("lost_records", r"60 of .*'minutes'.*raise the bound of the watermark strategy", late),
    Fault("dead_letters", r"60 of .*'count'.*the side output of on_error= has", letters),
    Fault("failing_calls", r"60 of .*'ask'.*check the service", calls_fail),
    Fault("back_pressure", r"tasks of 'count' waited .*the sink is slower than the program", sink_is_slow),
    Fault("slow_copies", r"on copying Cart values, which 'carts' emits.*pillarbox\.immutable\(Cart\)", copies),
)  # fmt: skip
