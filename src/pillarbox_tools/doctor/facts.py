"""What the rules of the doctor ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pillarbox_tools.model.snapshot import Snapshot

# Spark keeps so many epochs unless it is told otherwise.
_RETAINED = 100


@dataclass(frozen=True)
class Facts:
    """The facts of a machine, and of a query. What is None or missing is not known.

    Attributes:
        versions: of ``java``, ``python``, ``spark`` and of packages in the driver, by name.
        worker_versions: the same of workers, without ``java`` and ``spark``: each combination; None: none has told.
        settings: of Spark, of the query and of its trigger.
        snapshot: of the query; None: there is none.
    """

    versions: dict[str, str] = field(default_factory=dict)
    worker_versions: Sequence[Mapping[str, str]] | None = None
    settings: dict[str, str] = field(default_factory=dict)
    snapshot: Snapshot | None = None

    @staticmethod
    def of(snapshot: Snapshot) -> Facts:
        """Return the facts that a snapshot has of a query, of the machine of its driver, and of its workers."""
        run = snapshot.run
        return Facts(run.versions, run.worker_versions or None, run.settings, snapshot)

    @property
    def cores(self) -> int | None:
        """How many tasks Spark runs at a time."""
        said = self.settings.get("cores", "")
        return int(said) if said.isdigit() else None

    @property
    def retained(self) -> int:
        """How many epochs Spark keeps in the checkpoint."""
        said = self.settings.get("spark.sql.streaming.minBatchesToRetain", "")
        return int(said) if said.isdigit() else _RETAINED


@dataclass(frozen=True)
class Finding:
    """What a rule found.

    Attributes:
        rule: the name of the rule.
        status: ``"wrong"``, ``"fine"`` or ``"unknown"``.
        message: of what is wrong: what is wrong, with a number, and what to do. Of what is unknown: what is not known.
    """

    rule: str
    status: str
    message: str = ""
