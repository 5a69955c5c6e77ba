"""The functions that the core calls (``_runtime/spark/tools.py``): hooks, and implementations of public functions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pillarbox._runtime.spark.notices import notify
from pillarbox._runtime.spark.running.monitoring import Dashboard, MetricsServer
from pillarbox._runtime.spark.starting.started import StartedQuery
from pillarbox._runtime.spark.tools import Progress
from pillarbox_tools.doctor.finding import machine_snapshot
from pillarbox_tools.doctor.rules import START_RULES, warn_of_findings
from pillarbox_tools.watching.following import watched, watched_query

if TYPE_CHECKING:
    from pillarbox_tools.export.prometheus import MetricsCollector


def on_started(started: StartedQuery) -> None:
    configuration = started.configuration
    if configuration is not None:
        warn_of_findings(machine_snapshot(configuration.versions, configuration.settings), START_RULES)
    places = {program.summary.dashboard for program in started.programs if program.summary.dashboard is not None}
    if not started.is_watched or not places:
        return
    from pillarbox_tools.dashboard.server import open_dashboard

    for address in sorted(places, key=str):
        dashboard = open_dashboard([watched(started)], *address)
        notify(f"query {started.query.id}: its dashboard is at {dashboard.url}")


def on_progress(started: StartedQuery, reports: Sequence[Progress]) -> None:
    query = watched(started)
    if started.heartbeat is not None:
        query.beat(started.heartbeat)
    query.take(reports)


def on_ended(started: StartedQuery, failure: Exception | None) -> None:
    watched(started).end(failure)


def progress_line(started: StartedQuery) -> AbstractContextManager[None]:
    from pillarbox_tools.watching.progress_line import progress_line

    return progress_line(started)


def record(writer: Any, directory: str, **options: Any) -> str:
    from pillarbox_tools.recording.record import record

    return record(writer, directory, **options)


def dashboard(query: Any, port: int | None, *, host: str | None, token: str | None) -> Dashboard:
    from pillarbox_tools.dashboard.server import open_dashboard

    shown = watched_query(query, "dashboard()", ": 'pillarbox dashboard CHECKPOINT' shows its checkpoint")
    return open_dashboard([shown], host, port, token)


def serve_metrics(query: Any, port: int, *, host: str) -> MetricsServer:
    from pillarbox_tools.export.prometheus import open_server

    return open_server(watched_query(query, "serve_metrics()").metrics, host, port)


def query_collector() -> MetricsCollector:
    from pillarbox_tools.export.prometheus import MetricsCollector

    return MetricsCollector("QueryCollector()", lambda query: watched_query(query, "QueryCollector").metrics)


def export_otel(query: Any, meter_provider: Any) -> None:
    from pillarbox_tools.export.otel import observe

    observe(watched_query(query, "export_otel()").metrics, meter_provider)
