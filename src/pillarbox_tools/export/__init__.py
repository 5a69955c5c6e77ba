"""Exporters of query metrics: Prometheus and OpenTelemetry.

Imports `model` and the layers shared by all, and no Spark. Start with `metric.py`, the list of all metrics, then
`query_metrics.py`. Weak spot: sums lack epochs whose progress report Spark discards before it is read.
"""
