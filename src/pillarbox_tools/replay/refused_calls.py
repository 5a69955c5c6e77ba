"""Prevents a replay from calling services and starting programs.

Keyed functions receive the recorded answers to ``ctx.call``. Other operators that call services are replaced. Calls in
other user code are detected with Python's audit events. C libraries raise no such events for their sockets, and only a
network namespace stops them (``cli/replay_process.py``).
"""

from __future__ import annotations

import ipaddress
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from types import FrameType
from typing import Any, NoReturn
from weakref import WeakSet

from pillarbox._elements.records import Records
from pillarbox._errors import shorten, shorten_record
from pillarbox._operators.async_keyed.factory import async_options
from pillarbox._operators.calls.replayed import ReplayedCalls
from pillarbox._operators.frame.operator import StreamOperator
from pillarbox._task.vertex import Vertex
from pillarbox_tools.addresses import is_loopback
from pillarbox_tools.recording.recording import Answers
from pillarbox_tools.replay.nondeterminism import is_code_of_user

_PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile"}
_NAMES = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}
_SENDS = {"socket.connect", "socket.sendto", "socket.sendmsg"}
_NAMED = 5


class RefusedCallError(BaseException):
    """Raised if a task tries to make a call. Not an ``Exception``, which retries and dead letters would catch."""


class RefusedCalls:
    """Makes calls to services raise RefusedCallError, in this thread and in threads that start later."""

    def __init__(self, uid: str) -> None:
        self.first: str | None = None
        self._uid = uid
        self._others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        # Sockets that user code has bound. It may connect to them.
        self._bound: WeakSet[Any] = WeakSet()

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Handle an audit event. Raises :class:`RefusedCallError` if it is a call."""
        if threading.get_ident() in self._others:
            return
        if event == "socket.bind":
            self._bound.add(arguments[0])
            return
        action = self._action(event, arguments)
        if action is None:
            return
        frame = sys._getframe(2)
        if any(str(caller.f_globals.get("__name__", "")).startswith("py4j.") for caller in _frames(frame)):
            return  # Python releases Java objects of the script's session
        message = (
            f"{_caller(frame, self._uid)} would {action}. A replay makes no calls, so it has stopped here: pass"
            " --allow-calls to allow calls to a test service"
        )
        self.refuse(message)

    def refuse(self, message: str) -> NoReturn:
        self.first = self.first or message
        raise RefusedCallError(message)

    def _action(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        if event in _PROGRAMS:
            return f"run a program, {shorten(arguments[1] if len(arguments) > 1 else arguments[0])}"
        if event in _NAMES:
            return f"look up the host {arguments[0]!r}" if _is_name(arguments[0]) else None
        if event not in _SENDS or arguments[1] is None or self._is_own(arguments[1]):
            return None
        address = arguments[1]
        is_pair = isinstance(address, tuple) and len(address) > 1
        return f"{'connect' if event == 'socket.connect' else 'send'} to " + (
            f"{address[0]}:{address[1]}" if is_pair else str(address)
        )

    def _is_own(self, address: Any) -> bool:
        for bound_socket in list(self._bound):
            try:
                own = bound_socket.getsockname()
            except OSError:
                continue
            if own == address:
                return True
            if isinstance(own, tuple) and isinstance(address, tuple) and own[1:2] == address[1:2]:
                return address[0] == own[0] or is_loopback(str(address[0]))
        return False


def _is_name(host: Any) -> bool:
    name = host.decode(errors="replace") if isinstance(host, (bytes, bytearray)) else host
    if not name or name in ("localhost", socket.gethostname()):
        return False
    try:
        ipaddress.ip_address(str(name).partition("%")[0])
    except ValueError:
        return True
    return False


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _caller(frame: FrameType, uid: str) -> str:
    operators = (frame.f_locals.get("self") for frame in _frames(frame))
    operator = next((operator for operator in operators if isinstance(operator, StreamOperator)), None)
    frames = [frame for frame in _frames(frame) if is_code_of_user(frame.f_code.co_filename)]
    own = [frame for frame in frames if "site-packages" not in frame.f_code.co_filename] or frames
    location = "" if not own else f", in {own[0].f_code.co_name}() at {own[0].f_code.co_filename}:{own[0].f_lineno},"
    return f"operator {(uid if operator is None else operator.context.uid)!r}{location}"


# The last item is in force.
_refusing: list[RefusedCalls] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _refusing:
        _refusing[-1].hear(event, arguments)


@cache
def _install_hook() -> None:
    sys.addaudithook(_hear)  # Python cannot remove it


@contextmanager
def refused_calls(uid: str) -> Iterator[RefusedCalls]:
    _install_hook()
    _refusing.append(RefusedCalls(uid))
    try:
        yield _refusing[-1]
    finally:
        _refusing.pop()


class UnansweredCallOperator(StreamOperator):
    """Replaces an operator that calls a service. Stops the replay at the first request."""

    def process_records(self, records: Records) -> None:
        self._refuse(records.values)

    def restore_state(self, state: Any) -> None:
        entries = state or ()
        carried = [value for what, *content in entries if what in ("request", "answer") for value in content[0]]
        if carried:
            self._refuse(carried)

    def _refuse(self, requests: Sequence[Any]) -> NoReturn:
        more = f", and {len(requests) - _NAMED} more" if len(requests) > _NAMED else ""
        _refuse(
            self.context.uid,
            "calls a service, but the recording has no results. Pending requests:"
            f" {', '.join(map(shorten_record, requests[:_NAMED]))}{more}. Pass --allow-calls to make the calls",
        )


def replay_calls(vertex: Vertex, answers: Mapping[str, Answers], *, allow_calls: bool) -> None:
    """Give a vertex's operators the recorded answers, and refuse other calls unless allowed."""
    for node in vertex.nodes:
        factory = node.factory
        options = async_options(factory)
        if options is not None:
            entries = answers.get(node.uid)
            refuse = None if allow_calls else partial(_refuse_call, node.uid)
            calls = ReplayedCalls(entries, refuse, may_carry=options.carries and entries is not None)
            make: Callable[..., StreamOperator] = factory.make
            node.factory = replace(factory, make=partial(make, options=replace(options, replayed=calls)))
        elif factory.wakes_up and not allow_calls:
            node.factory = replace(factory, make=UnansweredCallOperator, wakes_up=False)


def _refuse_call(uid: str, call: str) -> NoReturn:
    _refuse(uid, f"calls {call}, but the recording has no result. Pass --allow-calls to make the call")


def _refuse(uid: str, why: str) -> NoReturn:
    (_refusing or [RefusedCalls(uid)])[-1].refuse(f"operator {uid!r} {why}")
