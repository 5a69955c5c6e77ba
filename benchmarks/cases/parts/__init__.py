# SPDX-License-Identifier: Apache-2.0
"""The mailbox and timers by themselves, without Spark."""
