"""Exporters: the metrics of queries for Prometheus and for OpenTelemetry.

Start with `metric.py`, which lists all metrics; `readings.py` takes them from an epoch, `ledger.py` adds them up in the
thread that feeds the model of a query, and `prometheus.py` and `otel.py` hand them on. It imports `model` and what all
layers share, and knows no Spark. The libraries of the extras `metrics` and `otel` are imported when they are needed.
Weak spot: an epoch whose progress Spark has let go before it was read is in no sum.
"""
