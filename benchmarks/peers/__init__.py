# SPDX-License-Identifier: Apache-2.0
"""The peers (alternatives to pillarbox), and the limits that nothing can beat.

- ``environments`` creates an environment for each peer without Spark, and starts sides in it.
- ``flink_jobs``, ``pathway_graph`` and ``bytewax_flow`` run in these environments, without pillarbox and Spark.
- ``counts`` is a keyed count in pillarbox and in Spark's own APIs; ``spark`` has Spark's state stores.
- ``limits`` moves rows without any work, and runs a function in a bare Python loop.
- ``lookups`` sends requests to a service, also as by hand; ``http_service`` is the service.
- ``object_store`` is an object store that counts requests.

Each case names its peers, and which side its setup favours. Weak spot: the peers' versions in ``environments`` are
updated by hand.
"""
