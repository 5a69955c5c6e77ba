"""The limits of a state log: how large chunks get, and how long the log."""

from __future__ import annotations

CHUNK_BYTES = 512 * 1024
CHUNK_ROWS = 4096
# PySpark sends the length of a value as a signed number of 32 bits, and some bytes around it.
VALUE_BYTES = 2**31 - 1024 * 1024
# The log may take this many bytes more than twice the current rows before it is cleaned. With what is left of chunks
# that are being cleaned, and with what is only estimated, it stays within 4 MiB.
SLACK_BYTES = 1024 * 1024
# Epochs that touch few keys write small chunks. They are gathered when there are more than this many for each full
# chunk of live rows, and some to spare: that costs an epoch up to this part of a full chunk. Leaving them would cost a
# cold start its reads.
GATHERING = 16
SPARE_CHUNKS = 64
