"""Starting a program from a savepoint: which of its operators takes which state, and what speaks against it.

Source of the behaviour: Flink's ``execution.savepoint.path`` and ``execution.savepoint.ignore-unclaimed-state``; to
give operators other uids is not Flink's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from pillarbox._errors import CheckpointMismatchError, ProgramError, listed, shorten
from pillarbox._graph.source_match import match_sources
from pillarbox._operators.timestamps_and_watermarks import status_said_anew
from pillarbox._state.keys.key_note import key_change
from pillarbox._state.keys.state_note import state_change
from pillarbox._state.savepoint.own_state import check_watermarks, gate_with_edges, redistribute
from pillarbox._state.slots import LIST, UNION
from pillarbox._task.vertex import edge_from, sender_of_edge, source_numbers

if TYPE_CHECKING:
    from pillarbox._graph.program import Program
    from pillarbox._state.savepoint.manifest import Manifest, OperatorTable
    from pillarbox._state.savepoint.own_state import OwnState
    from pillarbox._task.vertex import Vertex

#: Sources resume at the savepoint's positions.
SAVEPOINT = "savepoint"
#: Sources begin as in a new query.
NONE = "none"

Positions = str | tuple[Any, ...] | Mapping[str, Any]


@dataclass(frozen=True)
class SavepointStart:
    """What ``env.from_savepoint(...)`` asks for.

    Attributes:
        directory: the savepoint.
        allow_non_restored_state: whether state may be left behind, and positions of sources.
        renamed: the uids of the program's operators and the names of its sources, by those in the savepoint.
        positions: where sources begin: ``SAVEPOINT``, ``NONE``, a position for each of Spark's, or for some by name.
    """

    directory: str
    allow_non_restored_state: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    positions: Positions = SAVEPOINT

    @staticmethod
    def of(directory: Any, allow_non_restored_state: bool, renamed: Any, positions: Any) -> SavepointStart:
        """Return what the user asked for.

        Raises:
            ProgramError: an argument is of another kind.
        """
        if not isinstance(directory, (str, PathLike)) or not str(directory):
            raise ProgramError(f"from_savepoint() takes the directory of a savepoint, not {shorten(directory)}")
        given = {} if renamed is None else dict(renamed) if isinstance(renamed, Mapping) else None
        if given is None or not all(isinstance(uid, str) and uid for pair in given.items() for uid in pair):
            raise ProgramError(
                f"from_savepoint(): renamed is a dict of new uids by those in the savepoint, not {shorten(renamed)}"
            )
        if len(set(given.values())) < len(given):
            raise ProgramError(f"from_savepoint(): renamed gives one uid to several operators: {shorten(given)}")
        where = str(fspath(directory))
        return SavepointStart(where.rstrip("/") or where, allow_non_restored_state, given, _positions(positions))

    def check(self, program: Program) -> None:
        """Check what needs no look at the savepoint.

        Raises:
            ProgramError: the program runs in batch mode; or it has no operator with a uid that one is to get.
        """
        if program.batch:
            raise ProgramError(
                "a program in batch mode starts without state: from_savepoint() takes RuntimeExecutionMode.STREAMING"
            )
        if all(vertex.is_source for vertex in program.vertices):
            raise ProgramError(
                "from_savepoint(): the program has no operator that could take state: there is none behind a key_by()"
                " or another shuffle"
            )
        uids, sources = _uids(program), sorted({source.name for source in program.sources.values()})
        unknown = [new for new in self.renamed.values() if new not in uids and new not in sources]
        if unknown:
            raise ProgramError(
                f"from_savepoint(): renamed gives {listed(unknown)} as new uid, and the program has no such operator;"
                f" it has {listed(sorted(uid for uid in uids if uid))}, and the sources {listed(sources)}"
            )

    def uid_of(self, uid: str) -> str:
        """Return the uid that an operator of the savepoint has in the program."""
        return self.renamed.get(uid, uid)

    def left_behind(self, uid: str, rows: int) -> str:
        """Return the warning that state of an operator is left behind: as many rows of keys and windows."""
        return f"savepoint {self.directory}: the state of operator {uid!r} is left behind: {rows} rows"

    def table(self, operator: OperatorTable, program: Program) -> OperatorTable:
        """Return the table of an operator with the slots that :meth:`own_state` leaves."""
        uids = _uids(program)
        slots = [(self._slot(name, uids), kind) for name, kind in operator.space_layout]
        columns = [(column, self._slot(column.slot, uids)) for column in operator.columns]
        return replace(
            operator,
            space_layout=tuple((name, kind) for name, kind in slots if name is not None),
            columns=tuple(replace(column, slot=name) for column, name in columns if name is not None),
        )

    def own_states(
        self, table: OperatorTable, states: Sequence[OwnState], vertex: Vertex, manifest: Manifest, program: Program
    ) -> list[OwnState]:
        """Return what the subtasks of a vertex have of the former ones' own state.

        Args:
            table: the operator's, of the savepoint.
            states: of the former subtasks, in their order.
        """
        senders = self._senders(table, manifest, program)

        def edge(former: int) -> int | None:
            sender = senders.get(sender_of_edge(former))
            return None if sender is None else edge_from(former, sender)

        kept = [self._own_state(state, program) for state in states]
        for state in kept:
            if state.task.get("gate"):
                state.task["gate"] = gate_with_edges(state.task["gate"], edge)
        keys_stay = (table.parallelism, table.max_parallelism) == (vertex.parallelism, vertex.max_parallelism)
        if not keys_stay:
            check_watermarks(table, kept, vertex.parallelism)
        return redistribute(vertex.uid, kept, vertex.parallelism, vertex.channels, keys_stay=keys_stay)

    def _senders(self, table: OperatorTable, manifest: Manifest, program: Program) -> dict[int, int]:
        """Map the numbers of the savepoint's vertices to the numbers of the program's.

        By these numbers a task knows who has sent which watermark. Operators are known by their uids, sources as their
        positions are; of others, nothing is known.
        """
        heads = {vertex.uid: vertex.number for vertex in program.vertices if not vertex.is_source}
        operators = {number: self.uid_of(uid) for uid, number, _ in table.program}
        found = {number: heads[uid] for number, uid in operators.items() if uid in heads}
        now = [source.name for source in program.sources.values()]
        then: list[str | None] = [None] * len(now)
        for described in manifest.programs or ():
            if any(operator["uid"] == table.uid for operator in described.get("operators", ())):
                then = [source["name"] for source in described["sources"]]
        if manifest.sources.are_named and len({*then}) < len(then):
            return found  # which of them was which, only Spark knew
        match = match_sources(then, now, self.renamed)
        if match is not None:
            former = [*islice(source_numbers(table.program), len(then))]
            places = zip(match.places, program.sources)
            found |= {former[place]: number for place, number in places if place is not None}
        return found

    def _own_state(self, state: OwnState, program: Program) -> OwnState:
        """Return the own state of a subtask with the program's uids, without operators that are not in the program."""
        uids = _uids(program)
        task = dict(state.task)
        if "operators" in task:
            found = {self.uid_of(uid): content for uid, content in task["operators"].items()}
            task["operators"] = {uid: content for uid, content in found.items() if uid in uids}
        if "event_time" in task:
            task["event_time"] = self._event_time(task["event_time"])
        slots = ((self._slot(name, uids), content) for name, content in state.row.items())
        return replace(state, task=task, row={name: content for name, content in slots if name is not None})

    def _event_time(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is known of event time, by the program's uids; names of streams and edges have uids in them."""

        def place(name: tuple[Any, ...]) -> tuple[Any, ...]:
            if len(name) == 1:
                return (self.uid_of(name[0]),)
            edge, receiver, *which = name
            return edge, self.uid_of(receiver) if isinstance(receiver, str) else receiver, *which

        def stream(name: tuple[Any, ...]) -> tuple[Any, ...]:
            uid, *which = name
            return self.uid_of(uid), *which

        meetings = {
            place(name): {**valve, "channels": {stream(one): state for one, state in valve["channels"].items()}}
            for name, valve in known.get("meetings", {}).items()
        }
        # Operators after these may be new, and have not heard which streams are idle.
        operators = {self.uid_of(uid): status_said_anew(state) for uid, state in known.get("operators", {}).items()}
        return {"operators": operators, "meetings": meetings}

    def _slot(self, name: str, uids: set[str]) -> str | None:
        """Return the name of a slot in the program; None: it is of an operator that this one does not have."""
        lead, uid, state = _parts(name)
        if lead is None:
            return name
        return f"{lead}{self.uid_of(uid)}/{state}" if self.uid_of(uid) in uids else None


def _uids(program: Program) -> set[str]:
    return {node.uid for vertex in program.vertices for node in vertex.nodes}


def _parts(slot: str) -> tuple[str | None, str, str]:
    """Return what leads the name of a slot, uid and name of the state; None: it is no state of an operator's own."""
    for lead in (LIST, UNION):
        if slot.startswith(lead):
            uid, _, name = slot[len(lead) :].rpartition("/")
            return lead, uid, name
    return None, "", ""


def _stateful(states: Iterable[OwnState]) -> set[str]:
    """Return the uids of the operators of which there is something in subtasks' own state."""
    found = set()
    for state in states:
        found |= {uid for uid, content in state.task.get("operators", {}).items() if content}
        found |= {uid for slot, content in state.row.items() for lead, uid, _ in [_parts(slot)] if lead and content}
    return found


def _timed(states: Iterable[OwnState]) -> set[str]:
    """Return the uids of the operators of which subtasks know something of event time; none of it would be missed."""
    found: set[str] = set()
    for state in states:
        known = state.task.get("event_time") or {}
        found |= known.get("operators", {}).keys()
        for name, valve in known.get("meetings", {}).items():
            found |= {name[0] if len(name) == 1 else name[1], *(uid for uid, *_ in valve["channels"])}
    return found


@dataclass(frozen=True)
class RestorePlan:
    """Which vertex takes which table of a savepoint.

    Attributes:
        vertices: by the uid in the savepoint.
        left_behind: the uids of operators whose state is left behind.
        warnings: messages about what may be wrong.
    """

    vertices: dict[str, Vertex]
    left_behind: tuple[str, ...]
    warnings: tuple[str, ...]


def plan_restore(
    start: SavepointStart,
    manifest: Manifest,
    program: Program,
    own: Mapping[str, Sequence[OwnState]],
    others: Sequence[str] = (),
) -> RestorePlan:
    """Compare a program with a savepoint.

    Args:
        own: for each table, what its subtasks keep besides the rows of keys.
        others: further reasons against it: one message each.

    Raises:
        CheckpointMismatchError: the program cannot start from it: all reasons, one line each.
    """
    wrong: list[str] = []
    warnings: list[str] = []
    if manifest.drained:
        warnings.append("it was drained: event time has ended in it, so all further records are late")
    heads = {vertex.uid: vertex for vertex in program.vertices if not vertex.is_source}
    nodes = {node.uid: vertex for vertex in heads.values() for node in vertex.nodes}
    stateful = {uid: _stateful(states) for uid, states in own.items()}
    known = {table.uid for table in manifest.operators}.union(*stateful.values())
    timed = set[str]().union(*map(_timed, own.values()))
    sources = {source["name"] for described in manifest.programs or () for source in described["sources"]}
    unknown = [old for old in start.renamed if old not in known | timed | sources]
    if unknown:
        wrong.append(
            f"renamed names {listed(unknown)}, of which it has no state; it has that of {listed(sorted(known))}"
        )
    left: list[str] = []
    vertices: dict[str, Vertex] = {}
    kinds = {
        operator["uid"]: operator.get("kind")
        for described in manifest.programs or ()
        for operator in described.get("operators", ())
    }
    for table in manifest.operators:
        vertex = heads.get(start.uid_of(table.uid))
        if vertex is None:
            left.append(table.uid)
            continue
        if vertex in vertices.values():
            other = next(uid for uid, taken in vertices.items() if taken is vertex)
            wrong.append(
                f"operators {other!r} and {table.uid!r} of it would both become {vertex.uid!r}: one of them can"
            )
            continue
        vertices[table.uid] = vertex
        _compare(table, vertex, kinds.get(table.uid), wrong, warnings)
        for uid in sorted(stateful.get(table.uid, set()) - {table.uid}):
            there = nodes.get(start.uid_of(uid))
            if there is None:
                left.append(uid)
            elif there is not vertex:
                wrong.append(
                    f"operator {uid!r} has state of its own, and was chained after {table.uid!r}; it is after"
                    f" {there.uid!r} now, where its state is not found: chain it as before, or leave its state behind"
                )
    if left and not start.allow_non_restored_state:
        added = [uid for uid in heads if uid not in {vertex.uid for vertex in vertices.values()}]
        instead = f" (it has {listed(added)}, of which the savepoint has none)" if added else ""
        wrong.append(
            f"it has state of {listed(left)}, which the program does not have{instead}: set uid() to the one in the"
            " savepoint, say renamed={'old uid': 'new uid'}, or leave the state behind: allow_non_restored_state=True"
        )
    wrong += others
    if wrong:
        lines = "".join(f"\n  - {one}" for one in wrong)
        raise CheckpointMismatchError(f"the program cannot start from the savepoint {start.directory}:{lines}")
    return RestorePlan(vertices, tuple(left), tuple(warnings))


def _compare(table: OperatorTable, vertex: Vertex, kind: str | None, wrong: list[str], warnings: list[str]) -> None:
    operator = f"operator {vertex.uid!r}"
    if kind and kind != vertex.kind:
        wrong.append(f"{operator} was made by {kind}(), and is made by {vertex.kind}(): they keep other state")
    change = key_change(table.key, vertex.key)
    if change is not None:
        surely, what = change
        if surely:
            wrong.append(f"{operator}: {what}; the savepoint's keys would never be met: key by what they were made of")
        else:
            warnings.append(f"{operator}: {what}: if it gives other keys, the savepoint's are never met")
    change = state_change(table.depends_on, vertex.state_depends_on)
    if change is not None:
        surely, what = change
        if surely:
            what += ": give it another uid(), and leave the state behind: allow_non_restored_state=True"
        (wrong if surely else warnings).append(f"{operator}: {what}")


def _positions(given: Any) -> Positions:
    if isinstance(given, str) and given in (SAVEPOINT, NONE):
        return given
    if isinstance(given, (list, tuple)) and all(map(_is_position, given)):
        return tuple(map(_copied, given))
    if isinstance(given, Mapping) and all(isinstance(name, str) and _is_position(one) for name, one in given.items()):
        return {name: _copied(one) for name, one in given.items()}
    raise ProgramError(
        'from_savepoint(): positions is "savepoint", "none", a dict of positions by the names of sources, or a list'
        " with one for each source of Spark's. A position is a dict or an int as in Spark's offset log, or None; not"
        f" {shorten(given)}"
    )


def _is_position(given: Any) -> bool:
    return given is None or isinstance(given, (Mapping, int))


def _copied(position: Any) -> Any:
    return dict(position) if isinstance(position, Mapping) else position
