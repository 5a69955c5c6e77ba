"""Makes Spark accumulators work in functions that stay open between epochs.

Spark reports only accumulators that the current task has unpickled. So values are summed by accumulator number, and the
sums are added to the worker's accumulators at the end of an epoch.
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

# ``{number: (parameter, sum)}``.
_Sums = dict[int, tuple[Any, Any]]


class _Collector:
    def __init__(self) -> None:
        self.is_on = False
        self._is_installed = False
        # State partitions that share a home process have separate sums.
        self._thread = threading.local()
        self._user_thread_sums: _Sums = {}
        # The zeros are the values of newly unpickled accumulators.
        self._zeros: WeakKeyDictionary[Accumulator[Any], bytes] = WeakKeyDictionary()
        self._lock = threading.RLock()

    def install(self) -> None:
        if self._is_installed:
            return
        from pyspark.accumulators import Accumulator

        add_here = Accumulator.add

        def add(accumulator: Accumulator[Any], term: Any) -> None:
            if self.is_on and accumulator.aid >= 0:
                self._add(accumulator, term)
            else:
                add_here(accumulator, term)

        Accumulator.add = add  # type: ignore[method-assign,assignment]
        self._is_installed = True

    def use_own_sums(self) -> None:
        if not hasattr(self._thread, "sums"):
            self._thread.sums = {}

    def _sums(self) -> _Sums:
        sums: _Sums = getattr(self._thread, "sums", self._user_thread_sums)
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

    def take_sums(self) -> list[tuple[int, Any, Any]]:
        with self._lock:
            own, others = self._sums(), self._user_thread_sums
            sums = dict(others)
            others.clear()
            for number, (parameter, value) in own.items():
                both = _added(number, parameter, sums[number][1], value) if number in sums else value
                sums[number] = parameter, both
            own.clear()
        return [(number, *parameter_and_sum) for number, parameter_and_sum in sums.items()]

    def drop(self) -> None:
        with self._lock:
            self._sums().clear()


_collector = _Collector()


def collect_for_this_thread() -> None:
    """From now on, sum the calling thread's values separately."""
    _collector.install()
    _collector.use_own_sums()
    _collector.is_on = True


@contextmanager
def collecting() -> Iterator[None]:
    """Sum the values added to accumulators within the block, and pass the sums to Spark unless the block raises."""
    _collector.install()
    _collector.is_on = True
    try:
        yield
        for number, parameter, value in _collector.take_sums():
            _leave_to_spark(number, parameter, value)
    finally:
        _collector.is_on = False
        _collector.drop()


def take_sums() -> bytes | None:
    """Return and reset the calling thread's pickled sums, or return None if there are no sums."""
    sums = _collector.take_sums()
    if not sums:
        return None
    with _as_users_error(sums[0][0], "pickling the value"):
        return _pickled(sums)


def drop() -> None:
    _collector.drop()


def add(added: bytes | None) -> None:
    if added is None:
        return
    with _as_users_error(None, "unpickling values"):
        sums = cloudpickle.loads(added)
    for number, parameter, value in sums:
        _leave_to_spark(number, parameter, value)


def _leave_to_spark(number: int, parameter: Any, value: Any) -> None:
    from pyspark.accumulators import _accumulatorRegistry, _deserialize_accumulator

    accumulator = _accumulatorRegistry.get(number)
    if accumulator is None:
        accumulator = _deserialize_accumulator(number, value, parameter)
    else:
        accumulator._value = _added(number, parameter, _unwrapped(accumulator._value), value)
    accumulator._value = _sendable(accumulator._value)


def _added(number: int, parameter: Any, first: Any, other: Any) -> Any:
    with _as_users_error(number, "adding up two values"):
        return parameter.addInPlace(first, other)


def _pickled(value: Any) -> bytes:
    pickled: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return pickled


class _Wrapped:
    """Wraps a value that only cloudpickle can pickle."""

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
