# SPDX-License-Identifier: Apache-2.0
"""What micro-batches, starts and task slots cost, and how rows and rate limits behave in them."""
