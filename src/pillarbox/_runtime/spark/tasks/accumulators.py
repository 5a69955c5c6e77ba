"""Spark's accumulators, for functions that stay open from epoch to epoch.

Spark forgets a worker's accumulators when a task begins, and sends the values of those that the task has unpickled.
Functions that an earlier task has unpickled hold accumulators that Spark no longer knows. So terms are summed up apart
from the accumulators, by number, and the sums become accumulators of the worker at the end of each epoch.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark import cloudpickle

from pillarbox._errors import describe
from pillarbox._runtime.spark.failures import remote_error
from pillarbox._tracebacks import user_traceback

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

# Parameter and sum of each accumulator, by its number.
_Sums = dict[int, tuple[Any, Any]]


class _Collector:
    """The sums of this process.

    Attributes:
        is_on: whether terms are summed up here, or in the accumulators, as Spark does.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._is_installed = False
        # Homes that several state partitions share have a thread, and sums, for each of them.
        self._thread = threading.local()
        self._of_other_threads: _Sums = {}
        # An accumulator's own value is the zero value with which it was unpickled.
        self._zeros: WeakKeyDictionary[Accumulator[Any], bytes] = WeakKeyDictionary()
        self._lock = threading.RLock()

    def install(self) -> None:
        """Sum up the terms of all accumulators while `is_on` is set."""
        if self._is_installed:
            return
        from pyspark.accumulators import Accumulator

        add_here = Accumulator.add

        def add(accumulator: Accumulator[Any], term: Any) -> None:
            if self.is_on and accumulator.aid >= 0:  # profilers have negative numbers
                self._add(accumulator, term)
            else:
                add_here(accumulator, term)

        Accumulator.add = add  # type: ignore[method-assign,assignment]
        self._is_installed = True

    def use_own_sums(self) -> None:
        """Give the calling thread its own sums."""
        if not hasattr(self._thread, "sums"):
            self._thread.sums = {}

    def _sums(self) -> _Sums:
        sums: _Sums = getattr(self._thread, "sums", self._of_other_threads)
        return sums

    def _add(self, accumulator: Accumulator[Any], term: Any) -> None:
        with self._lock:
            number, parameter, sums = accumulator.aid, accumulator.accum_param, self._sums()
            if number in sums:
                value = sums[number][1]
            else:
                zero = self._zeros.get(accumulator)
                if zero is None:
                    zero = self._zeros[accumulator] = _pickled(accumulator._value)
                value = cloudpickle.loads(zero)
            sums[number] = parameter, parameter.addInPlace(value, term)

    def taken(self) -> list[tuple[int, Any, Any]]:
        """Return number, parameter and value of the calling thread's sums, and of user threads' sums. They begin again.

        Raises:
            OperatorError: the user's parameter raised an error.
        """
        with self._lock:
            own, others = self._sums(), self._of_other_threads
            found = dict(others)
            others.clear()
            for number, (parameter, value) in own.items():
                both = _added(number, parameter, found[number][1], value) if number in found else value
                found[number] = parameter, both
            own.clear()
        return [(number, *each) for number, each in found.items()]

    def drop(self) -> None:
        """Forget the calling thread's sums: its epoch has failed."""
        with self._lock:
            self._sums().clear()


_collector = _Collector()


def collect_for_this_thread() -> None:
    """Collect, from now on, what functions of this process add; the calling thread has sums of its own."""
    _collector.install()
    _collector.use_own_sums()
    _collector.is_on = True


@contextmanager
def collecting() -> Iterator[None]:
    """Collect what functions of this worker add, and leave it to Spark at the end, unless the task fails."""
    _collector.install()
    _collector.is_on = True
    try:
        yield
        for number, parameter, value in _collector.taken():
            _leave_to_spark(number, parameter, value)
    finally:
        _collector.is_on = False
        _collector.drop()


def taken() -> bytes | None:
    """Return the additions of the calling thread's epoch, pickled, or None if there are none.

    Raises:
        OperatorError: a value cannot be pickled, or the user's parameter raised an error.
    """
    found = _collector.taken()
    if not found:
        return None
    with _as_users_error(found[0][0], "pickling the value"):
        return _pickled(found)


def drop() -> None:
    """Forget the additions of the calling thread's epoch, which has failed."""
    _collector.drop()


def add(added: bytes | None) -> None:
    """Add to this worker's accumulators what functions have added in a home. Spark sends them to the driver.

    Raises:
        OperatorError: a class cannot be imported here, or the user's parameter raised an error.
    """
    if added is None:
        return
    with _as_users_error(None, "unpickling values"):
        found = cloudpickle.loads(added)
    for number, parameter, value in found:
        _leave_to_spark(number, parameter, value)


def _leave_to_spark(number: int, parameter: Any, value: Any) -> None:
    from pyspark.accumulators import _accumulatorRegistry, _deserialize_accumulator

    known = _accumulatorRegistry.get(number)
    if known is None:
        known = _deserialize_accumulator(number, value, parameter)
    else:
        known._value = _added(number, parameter, _unwrapped(known._value), value)
    known._value = _sendable(known._value)


def _added(number: int, parameter: Any, one: Any, other: Any) -> Any:
    with _as_users_error(number, "adding up two values"):
        return parameter.addInPlace(one, other)


def _pickled(value: Any) -> bytes:
    pickled: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return pickled


class _Wrapped:
    """A value that only cloudpickle can pickle, such as an object of a local class. Spark uses pickle."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        return cloudpickle.loads, (_pickled(self.value),)


def _sendable(value: Any) -> Any:
    try:
        pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return _Wrapped(value)
    return value


def _unwrapped(value: Any) -> Any:
    return value.value if isinstance(value, _Wrapped) else value


@contextmanager
def _as_users_error(number: int | None, step: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        whose = "accumulators" if number is None else f"accumulator {number}"
        text = "\n".join(filter(None, [f"{whose}: {step} failed: {describe(error)}", user_traceback(error)]))
        raise remote_error("OperatorError", text) from None
