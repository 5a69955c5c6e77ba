"""Files in checkpoints that store the units charged to budgets' ceilings.

Each checkpoint stores the whole budget's charge, including other queries' share. The highest charge counts.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pillarbox._graph.description import json_object
from pillarbox._operators.budgets.account import AccountPeriod
from pillarbox._runtime.spark.budgets.server import ceilings_of
from pillarbox._runtime.spark.session.folders import HadoopFolder, text_of
from pillarbox._runtime.spark.session.session import session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint

#: The folder of charges in a savepoint.
IN_SAVEPOINT = "budgets"


class SpentFiles:
    """One checkpoint's files."""

    def __init__(self, folder: HadoopFolder) -> None:
        self._folder = folder
        self._query: Any = None
        self._files: defaultdict[str, list[str]] = defaultdict(list)

    def belongs_to(self, query: Any) -> None:
        self._query = query

    def read(self) -> list[tuple[str, AccountPeriod]]:
        charges = []
        for name, line in self._folder.lines():
            charges += charges_of(line)
            for budget, _ in charges_of(line):
                self._files[budget].append(name)
        return charges

    def write(self, budget: str, period: AccountPeriod) -> bool:
        if self._query is not None and not _is_active(self._query):
            return False
        name = f"{uuid.uuid4().hex}.json"
        self._folder.add(name, f"{json.dumps({'budget': budget, **asdict(period)})}\n")
        earlier, self._files[budget] = self._files[budget], [name]
        for file_name in earlier:
            self._folder.remove(file_name)
        return True


def _is_active(query: Any) -> bool:
    try:
        return bool(query.isActive)
    except Exception:
        return False


def charges_of(text: str) -> list[tuple[str, AccountPeriod]]:
    charges = []
    for line in text.splitlines():
        fields = json_object(line)
        if isinstance(fields.get("budget"), str):
            period = AccountPeriod(int(fields["began"]), float(fields["spent"]), int(fields["clock"]))
            charges.append((fields["budget"], period))
    return charges


def charges_in(spark: SparkSession, checkpoint: str) -> str:
    return "".join(f"{line}\n" for _, line in session_of(spark).folder(_folder(checkpoint)).lines())


def _folder(checkpoint: object) -> str:
    return f"{str(checkpoint).rstrip('/')}/pillarbox/budgets"


def resume_ceilings(spark: SparkSession, programs: Iterable[str], checkpoint: Checkpoint | None) -> SpentFiles | None:
    """Count the charges in a starting query's checkpoint against the ceilings. Returns the files, if any."""
    folder = None if checkpoint is None else session_of(spark).hadoop_folder(_folder(checkpoint))
    servers = {} if folder is None else ceilings_of(programs)
    if checkpoint is None or folder is None or not servers:
        return None
    files = SpentFiles(folder)
    charges = files.read()
    if checkpoint.savepoint is not None:
        charges += charges_of(text_of(spark, f"{checkpoint.savepoint}/{IN_SAVEPOINT}") or "")
    for name, server in servers.items():
        server.resume(name, [period for budget, period in charges if budget == name], files.write)
    return files
