# SPDX-License-Identifier: Apache-2.0
"""Rows per second beside peers: keyed functions, windows, joins, stateless chains and requests."""
