# SPDX-License-Identifier: Apache-2.0
"""The mailbox and timers alone, without Spark."""
