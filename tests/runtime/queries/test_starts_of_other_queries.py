"""Queries without a pillarbox program start through pillarbox's wrapper of ``DataStreamWriter.start``."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox._runtime.spark.plan import registry
from pillarbox._runtime.spark.session.writer import WriterStart
from pillarbox._runtime.spark.starting import start
from pillarbox._runtime.spark.starting.start import start_query


class Session:
    _jsparkSession = None


def unreadable(writer: Any) -> Any:
    raise RuntimeError("the plan cannot be read")


def test_a_query_starts_although_its_plan_cannot_be_read(monkeypatch, caplog):
    query: Any = "a query"
    monkeypatch.setattr(start, "programs_of", unreadable)
    with caplog.at_level(logging.WARNING, logger="pillarbox"):
        assert start_query(WriterStart(SimpleNamespace(_spark=Session()), "start"), lambda: query) == query
    assert "it starts without pillarbox's settings: RuntimeError: the plan cannot be read" in caplog.text


def test_it_does_not_where_a_program_waits_for_its_start(monkeypatch):
    monkeypatch.setattr(start, "programs_of", unreadable)
    session: Any = Session()
    monkeypatch.setattr(registry, "_unstarted", {session})
    with pytest.raises(RuntimeError, match="the plan cannot be read"):
        start_query(WriterStart(SimpleNamespace(_spark=session), "start"), lambda: pytest.fail("it was started"))


def test_a_start_can_be_repeated_whatever_its_options_are_called():
    writer = SimpleNamespace(_spark=Session(), start=lambda path, **options: (path, options))
    again: Any = WriterStart(writer, "start", "out", method="append", writer="me", self="too")
    assert again.run() == again.run() == ("out", {"method": "append", "writer": "me", "self": "too"})
