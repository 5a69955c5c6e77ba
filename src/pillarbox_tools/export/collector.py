"""A collector of queries for a registry of ``prometheus_client``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pillarbox_tools.export.exported import Exported
from pillarbox_tools.export.ledger import Ledger
from pillarbox_tools.export.prometheus import check_client, described, families

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from pyspark.sql.streaming.query import StreamingQuery


class Collector:
    """See :class:`pillarbox.QueryCollector`.

    Args:
        ledger_of: returns the ledger of a query.
    """

    def __init__(self, ledger_of: Callable[[StreamingQuery], Ledger]) -> None:
        check_client("QueryCollector()")
        self._ledger_of = ledger_of
        self._exported = Exported()

    def add(self, query: StreamingQuery) -> None:
        """Tell of a query, too."""
        self._exported.add(self._ledger_of(query))

    def collect(self) -> Iterator[Metric]:
        """Return the metrics as they are now. Any thread."""
        return families(self._exported)

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without samples."""
        return described()
