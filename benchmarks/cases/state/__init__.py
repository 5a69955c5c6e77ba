# SPDX-License-Identifier: Apache-2.0
"""The costs of state: epochs, memory and restarts, and reading, rescaling and saving state."""
