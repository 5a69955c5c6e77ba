# SPDX-License-Identifier: Apache-2.0
"""The costs of micro-batches, starts, task slots and the dashboard, and the behavior of rows and rate limits."""
