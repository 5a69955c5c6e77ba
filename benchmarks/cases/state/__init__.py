# SPDX-License-Identifier: Apache-2.0
"""What state costs: epochs, memory, restarts, and reading, rescaling and saving it."""
