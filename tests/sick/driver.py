"""A killed driver: ``python -m tests.sick.driver FOLDER`` ends by SIGKILL when its history is written."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pillarbox._runtime.spark.session.local_session import local_session
from tests.see.queries import Inbox
from tests.sick import programs
from tests.sick.room import OUTPUT, wait_for


def main() -> None:
    import pillarbox

    folder = Path(sys.argv[1])
    spark = local_session(2)
    inbox = Inbox.__new__(Inbox)
    inbox.folder = folder / "payments"
    stream = programs.counted(programs.payments_of(spark, inbox), folder / "marks")
    writer = stream.to_dataframe(OUTPUT).writeStream.format("noop").queryName(folder.name)
    pillarbox.start(writer.option("checkpointLocation", str(folder / "checkpoint")))
    wait_for(lambda: any((folder / "checkpoint" / "pillarbox" / "history").glob("*.txt")), 300)
    os.kill(os.getpid(), signal.SIGKILL)


main()
