# SPDX-License-Identifier: Apache-2.0
"""Spark's own state stores."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.harness.stepped import STATE_STORE

_STORE = "spark.sql.streaming.stateStore."
STORES: Mapping[str, Mapping[str, str]] = {
    "rocksdb": {
        _STORE + "providerClass": STATE_STORE,
        _STORE + "checkpointFormatVersion": "2",
        _STORE + "rocksdb.trackTotalNumberOfRows": "false",
    },
    "hdfs": {
        _STORE + "providerClass": STATE_STORE.replace("RocksDBStateStoreProvider", "HDFSBackedStateStoreProvider"),
        _STORE + "checkpointFormatVersion": "1",
    },
}
"""The settings of Spark's state stores; ``hdfs`` keeps its state in the JVM's memory."""
