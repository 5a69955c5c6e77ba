# SPDX-License-Identifier: Apache-2.0
"""What micro-batches, starts, task slots and the dashboard cost, and how rows and rate limits behave in them."""
