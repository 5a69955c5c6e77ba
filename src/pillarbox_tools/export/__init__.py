"""Exporters of query metrics: Prometheus and OpenTelemetry.

Start with `metric.py`, the list of all metrics. `readings.py` extracts them from an epoch, `query_metrics.py` sums them
in the thread that feeds the model, and `prometheus.py` and `otel.py` export them. It imports `model` and the layers
shared by all, and no Spark. Weak spot: sums lack epochs whose progress report Spark discards before it is read.
"""
