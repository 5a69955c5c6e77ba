"""The part of an environment that says which savepoint its programs start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, TypeVar

from pillarbox._graph.savepoint_start import SavepointStart

__all__ = ["StartsFromSavepoint"]

E = TypeVar("E", bound="StartsFromSavepoint")


class StartsFromSavepoint:
    """What starts with state, or without."""

    _savepoint: SavepointStart | None = None

    def from_savepoint(
        self: E,
        directory: str | PathLike[str],
        *,
        allow_non_restored_state: bool = False,
        renamed: Mapping[str, str] | None = None,
        positions: str | Mapping[str, Mapping[str, Any] | int | None] | Sequence[Mapping[str, Any] | int | None] = (
            "savepoint"
        ),
    ) -> E:
        """Let the program start with the state of a savepoint, at any parallelism.

        A streaming query takes it when it starts on a new checkpoint, in an epoch of its own before the first one, and
        goes on from that checkpoint in later starts, for which the savepoint need not be there any more. Before
        anything runs, the savepoint is compared with the program. Programs that run in this process take the state
        each time, and read no positions.

        Args:
            directory: the savepoint.
            allow_non_restored_state: whether state of operators, and positions of sources, that the program does not
                have are left behind.
            renamed: new uids of operators, and new names of sources, by those in the savepoint.
            positions: where sources begin. ``"savepoint"``: where the savepoint has them; sources are known by their
                names, and one that is new begins as in a new query. ``"none"``: all as in a new query. A dict: the
                positions of some sources by name, as Spark's offset log has them (a dict, or an int; None: as in a new
                query); the others as with ``"savepoint"``. A list: a position for each source of Spark's, in order.

        Returns:
            The environment.

        Raises:
            ProgramError: an argument is of another kind; (when the program is built) the program has no operator of
                a new uid, or is in batch mode; (when it starts on Spark) the query has no checkpoint location, or holds
                other programs or stateful operators of Spark's.
            CheckpointMismatchError: (when it starts) the savepoint is missing, damaged, or does not fit the program;
                the checkpoint was begun otherwise.

        Example:
            >>> env = env.from_savepoint("/savepoints/2026-05-01", renamed={"count": "count-cards"})
            >>> begin = {"payments": {"payments-topic": {"0": 4711, "1": 4690}}}
            >>> env = env.from_savepoint("/savepoints/2026-05-01", positions=begin)
        """
        self._savepoint = SavepointStart.of(directory, bool(allow_non_restored_state), renamed, positions)
        return self
