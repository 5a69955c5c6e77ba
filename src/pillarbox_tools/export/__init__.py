"""Exporters of query metrics: Prometheus and OpenTelemetry.

Imports `model` and the layers that all tools share, but not Spark. Start with `metric.py`, the list of all metrics,
then `query_metrics.py`. Weak spot: if Spark discards a progress report before it is read, its epoch is missing from the
sums.
"""
