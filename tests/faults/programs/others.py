"""All that runs beside the ledger of the fault tests, in the same program and on the same levels."""

from __future__ import annotations

from pillarbox import DataStream
from tests.faults.programs.columns_job import columns
from tests.faults.programs.connected_job import connected
from tests.faults.programs.job import Faults
from tests.faults.programs.join_job import JOINED, Joined, joins
from tests.faults.programs.letters_job import letters
from tests.faults.programs.rolling_job import rolling
from tests.faults.programs.window_job import windows

__all__ = ["all_others"]


def all_others(stamped: DataStream, faults: Faults, joined: Joined = JOINED) -> list[DataStream]:
    """Return the streams that the program has beside its own, with joins of such a kind."""
    return [
        *windows(stamped, faults),
        *joins(stamped, faults, joined),
        *columns(stamped, joined),
        *letters(stamped, faults),
        *connected(stamped, faults),
        *rolling(stamped, faults),
    ]
