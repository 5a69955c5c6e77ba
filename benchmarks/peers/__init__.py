# SPDX-License-Identifier: Apache-2.0
"""Those that pillarbox is compared with, and the limits that nothing can beat.

- ``environments`` makes an environment for each peer that is not on Spark, and starts sides in it.
- ``flink_jobs``, ``pathway_graph`` and ``bytewax_flow`` run in these environments, without pillarbox and Spark.
- ``counts`` is a keyed count in pillarbox and in Spark's own APIs; ``spark`` has Spark's state stores.
- ``limits`` are the rows with no work done, and a function in a bare Python loop.
- ``lookups`` are requests to a service, and how they are written by hand; ``http_service`` is the service.
- ``object_store`` is an object store that counts requests.

Each case names the peers that it has, and says to whose favour they are set up. The weak spot: their versions stand
still in ``environments`` until somebody raises them.
"""
