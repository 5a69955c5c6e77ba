from __future__ import annotations

import threading

from pillarbox._runtime.spark.homes.partition_tasks import PartitionLock


def waiting(turn: PartitionLock, count: int) -> None:
    while len(turn.waiting) < count:
        threading.Event().wait(0.001)


def test_one_thread_at_a_time_has_the_turn() -> None:
    turn, seen, inside = PartitionLock(), [], []

    def run(number: int) -> None:
        with turn.held():
            inside.append(number)
            seen.append(len(inside))
            inside.remove(number)

    with turn.held():
        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        waiting(turn, 4)
        assert seen == []
    for thread in threads:
        thread.join()
    assert seen == [1, 1, 1, 1] and turn.waiting == set()


def test_a_resting_task_lends_its_turn_and_gets_it_back() -> None:
    turn, order = PartitionLock(), []

    def run() -> None:
        with turn.held():
            order.append("other")

    with turn.held():
        thread = threading.Thread(target=run)
        thread.start()
        waiting(turn, 1)
        with turn.released():
            thread.join()
        order.append("first")
    assert order == ["other", "first"]


def test_a_thread_without_the_turn_rests_without_giving_it_away() -> None:
    turn, order = PartitionLock(), []

    def read() -> None:
        with turn.released():
            order.append("read")

    with turn.held():
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        assert turn._owner == threading.get_ident()
    assert order == ["read"]
