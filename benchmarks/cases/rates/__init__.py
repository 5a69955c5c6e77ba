# SPDX-License-Identifier: Apache-2.0
"""Rows per second, compared with peers: keyed functions, windows, joins, stateless chains and requests."""
