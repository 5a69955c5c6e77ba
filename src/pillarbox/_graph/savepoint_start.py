"""Matches a savepoint's operators with a program's.

Works like Flink's ``execution.savepoint.path``, except that operators may be renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from pillarbox._errors import CheckpointMismatchError, ProgramError, listed, shorten
from pillarbox._graph.first_operators import other_first_operator
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

#: Start at the savepoint's positions.
SAVEPOINT = "savepoint"
#: Start as in a new query.
NONE = "none"

Positions = str | tuple[Any, ...] | Mapping[str, Any]


@dataclass(frozen=True)
class SavepointStart:
    """The arguments of ``env.from_savepoint(...)``.

    Attributes:
        renamed: maps uids and source names in the savepoint to the program's.
        positions: where sources start: ``SAVEPOINT``, ``NONE``, a list with a position for each Spark source, or a dict
            by source name.
    """

    directory: str
    allow_non_restored_state: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    positions: Positions = SAVEPOINT

    @staticmethod
    def of(directory: Any, allow_non_restored_state: bool, renamed: Any, positions: Any) -> SavepointStart:
        if not isinstance(directory, (str, PathLike)) or not str(directory):
            raise ProgramError(f"from_savepoint() takes the directory of a savepoint, not {shorten(directory)}")
        new_uids = {} if renamed is None else dict(renamed) if isinstance(renamed, Mapping) else None
        if new_uids is None or not all(isinstance(uid, str) and uid for pair in new_uids.items() for uid in pair):
            raise ProgramError(
                "from_savepoint(): renamed= must be a dict from uids in the savepoint to new uids, not"
                f" {shorten(renamed)}"
            )
        if len(set(new_uids.values())) < len(new_uids):
            raise ProgramError(f"from_savepoint(): renamed= maps several operators to one uid: {shorten(new_uids)}")
        where = str(fspath(directory))
        return SavepointStart(where.rstrip("/") or where, allow_non_restored_state, new_uids, _positions(positions))

    def check(self, program: Program) -> None:
        if program.batch:
            raise ProgramError(
                "a program in batch mode starts without state: from_savepoint() needs RuntimeExecutionMode.STREAMING"
            )
        if all(vertex.is_source for vertex in program.vertices):
            raise ProgramError(
                "from_savepoint(): the program has no operator with state: call key_by() or another shuffle first"
            )
        # Outputs and prints have uids, but no state.
        nodes = ((node, vertex.nodes[0]) for vertex in program.vertices for node in vertex.nodes)
        uids = {node.uid for node, head in nodes if node is head or not node.is_sink}
        sources = sorted({source.name for source in program.sources.values()})
        unknown = [new for new in self.renamed.values() if new not in uids and new not in sources]
        if unknown:
            raise ProgramError(
                f"from_savepoint(): renamed= has the new uid {listed(unknown)}, but the program has no such"
                f" operator. Its operators are {listed(sorted(uid for uid in uids if uid))}, and its sources"
                f" {listed(sources)}"
            )

    def uid_of(self, uid: str) -> str:
        return self.renamed.get(uid, uid)

    def left_behind(self, uid: str, rows: int, states: Sequence[OwnState]) -> str:
        """Return a warning about an operator's dropped state. ``states`` is the operator state of its chain."""
        stateful = _stateful(states) if rows or states else {uid}
        also = f", and lists or carried records of {listed(sorted(stateful))}" if stateful else ""
        return f"savepoint {self.directory}: the state of operator {uid!r} is left behind: {rows} rows{also}"

    def table(self, operator: OperatorTable, program: Program) -> OperatorTable:
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
        """Divide the operator state of a vertex's former subtasks, ``states``, among its new subtasks."""
        senders = self._senders(table, manifest, program)

        def edge(former: int) -> int | None:
            sender = senders.get(sender_of_edge(former))
            return None if sender is None else edge_from(former, sender)

        own_states = [self._own_state(state, manifest, program) for state in states]
        for state in own_states:
            if state.task.get("gate"):
                state.task["gate"] = gate_with_edges(state.task["gate"], edge)
        keys_stay = (table.parallelism, table.max_parallelism) == (vertex.parallelism, vertex.max_parallelism)
        if not keys_stay:
            check_watermarks(table, own_states, vertex.parallelism)
        return redistribute(vertex.uid, own_states, vertex.parallelism, vertex.channels, keys_stay=keys_stay)

    def _senders(self, table: OperatorTable, manifest: Manifest, program: Program) -> dict[int, int]:
        """Map vertex numbers in the savepoint to the program's. Sources are matched as for their positions."""
        heads = {vertex.uid: vertex.number for vertex in program.vertices if not vertex.is_source}
        operators = {number: self.uid_of(uid) for uid, number, _ in table.program}
        numbers = {number: heads[uid] for number, uid in operators.items() if uid in heads}
        now = [source.name for source in program.sources.values()]
        then: list[str | None] = [None] * len(now)
        for described in manifest.programs or ():
            if any(operator["uid"] == table.uid for operator in described.get("operators", ())):
                then = [source["name"] for source in described["sources"]]
        if manifest.sources.are_named and len({*then}) < len(then):
            return numbers  # only Spark could distinguish the sources
        match = match_sources(then, now, self.renamed)
        if match is not None:
            former = [*islice(source_numbers(table.program), len(then))]
            places = zip(match.places, program.sources)
            numbers |= {former[position]: number for position, number in places if position is not None}
        return numbers

    def _own_state(self, state: OwnState, manifest: Manifest, program: Program) -> OwnState:
        uids = _uids(program)
        task = dict(state.task)
        if "operators" in task:
            contents = {self.uid_of(uid): content for uid, content in task["operators"].items()}
            task["operators"] = {uid: content for uid, content in contents.items() if uid in uids}
        if "event_time" in task:
            task["event_time"] = self._event_time(task["event_time"], manifest)
        slots = ((self._slot(name, uids), content) for name, content in state.row.items())
        return replace(state, task=task, row={name: content for name, content in slots if name is not None})

    def _event_time(self, event_time: Mapping[str, Any], manifest: Manifest) -> dict[str, Any]:
        """Replace the savepoint's uids in the event-time state, including uids within names, with the program's."""

        def merge_name(name: tuple[Any, ...]) -> tuple[Any, ...]:
            if len(name) == 1:
                return (self.uid_of(name[0]),)
            edge, receiver, *which = name
            return edge, self.uid_of(receiver) if isinstance(receiver, str) else receiver, *which

        def stream(name: tuple[Any, ...]) -> tuple[Any, ...]:
            uid, *which = name
            return self.uid_of(uid), *which

        meetings = {
            merge_name(name): {
                **valve,
                "channels": {stream(sender): state for sender, state in valve["channels"].items()},
            }
            for name, valve in event_time.get("meetings", {}).items()
        }
        # Operators may be new, so idle streams are announced again.
        operators = {
            self.uid_of(uid): _without_batch(status_said_anew(state), manifest)
            for uid, state in event_time.get("operators", {}).items()
        }
        return {"operators": operators, "meetings": meetings}

    def _slot(self, name: str, uids: set[str]) -> str | None:
        lead, uid, state = _parts(name)
        if lead is None:
            return name
        return f"{lead}{self.uid_of(uid)}/{state}" if self.uid_of(uid) in uids else None


def _without_batch(state: dict[str, Any], manifest: Manifest) -> dict[str, Any]:
    """Return an operator's event-time state without micro-batch numbers, which restart in a new query."""
    batch = state.pop("batch", None)
    return state if batch in (None, manifest.epoch) else {**state, "watermark": manifest.sources.watermark}


def _uids(program: Program) -> set[str]:
    return {node.uid for vertex in program.vertices for node in vertex.nodes}


def _parts(slot: str) -> tuple[str | None, str, str]:
    for lead in (LIST, UNION):
        if slot.startswith(lead):
            uid, _, name = slot[len(lead) :].rpartition("/")
            return lead, uid, name
    return None, "", ""


def _stateful(states: Iterable[OwnState]) -> set[str]:
    uids = set()
    for state in states:
        uids |= {uid for uid, content in state.task.get("operators", {}).items() if content}
        uids |= {uid for slot, content in state.row.items() for lead, uid, _ in [_parts(slot)] if lead and content}
    return uids


def _timed(states: Iterable[OwnState]) -> set[str]:
    uids: set[str] = set()
    for state in states:
        event_time = state.task.get("event_time") or {}
        uids |= event_time.get("operators", {}).keys()
        for name, valve in event_time.get("meetings", {}).items():
            uids |= {name[0] if len(name) == 1 else name[1], *(uid for uid, *_ in valve["channels"])}
    return uids


@dataclass(frozen=True)
class SavepointStartPlan:
    """An assignment of a savepoint's tables to vertices."""

    vertices: dict[str, Vertex]
    left_behind: tuple[str, ...]
    warnings: tuple[str, ...]


def plan_restore(
    start: SavepointStart,
    manifest: Manifest,
    program: Program,
    own: Mapping[str, Sequence[OwnState]],
    others: Sequence[str] = (),
) -> SavepointStartPlan:
    """Match a program with a savepoint. Raises CheckpointMismatchError for conflicts, including ``others``."""
    wrong: list[str] = []
    warnings: list[str] = []
    if manifest.drained:
        warnings.append("it was drained, which ended event time, so all further records are late")
    heads = {vertex.uid: vertex for vertex in program.vertices if not vertex.is_source}
    nodes = {node.uid: vertex for vertex in heads.values() for node in vertex.nodes}
    stateful = {uid: _stateful(states) for uid, states in own.items()}
    uids = {table.uid for table in manifest.operators}.union(*stateful.values())
    timed = set[str]().union(*map(_timed, own.values()))
    sources = {source["name"] for described in manifest.programs or () for source in described["sources"]}
    unknown = [old for old in start.renamed if old not in uids | timed | sources]
    if unknown:
        wrong.append(f"renamed= names {listed(unknown)}, but the savepoint has only state of {listed(sorted(uids))}")
    left: list[str] = []
    vertices: dict[str, Vertex] = {}
    described = {
        operator["uid"]: operator for former in manifest.programs or () for operator in former.get("operators", ())
    }
    for table in manifest.operators:
        vertex = heads.get(start.uid_of(table.uid))
        if vertex is None:
            left.append(table.uid)
            continue
        if vertex in vertices.values():
            other = next(uid for uid, assigned in vertices.items() if assigned is vertex)
            wrong.append(
                f"operators {other!r} and {table.uid!r} of the savepoint would both become {vertex.uid!r}: rename"
                " only one"
            )
            continue
        vertices[table.uid] = vertex
        _compare(table, vertex, described.get(table.uid, {}).get("kind"), wrong, warnings)
        for uid in sorted(stateful.get(table.uid, set()) - {table.uid}):
            there = nodes.get(start.uid_of(uid))
            if there is None:
                left.append(uid)
            elif there is not vertex:
                wrong.append(
                    f"operator {uid!r} has operator state and was chained after {table.uid!r}, but is now chained after"
                    f" {there.uid!r}, where its state is not found: chain it as before, or drop its state with another"
                    " uid() and allow_non_restored_state=True"
                )
    if left and not start.allow_non_restored_state:
        wrong += _left(start, left, described, heads, vertices)
    wrong += others
    if wrong:
        lines = "".join(f"\n  - {reason}" for reason in wrong)
        raise CheckpointMismatchError(f"the program cannot start from the savepoint {start.directory}:{lines}")
    return SavepointStartPlan(vertices, tuple(left), tuple(warnings))


def _left(
    start: SavepointStart,
    left: Sequence[str],
    described: Mapping[str, Mapping[str, Any]],
    heads: Mapping[str, Vertex],
    vertices: Mapping[str, Vertex],
) -> Iterator[str]:
    uid_of = start.uid_of
    then = {uid_of(uid): [*map(uid_of, operator.get("chain", ()))] for uid, operator in described.items()}
    now = {uid: [node.uid for node in vertex.nodes[1:]] for uid, vertex in heads.items()}
    changes = {uid: other_first_operator(uid_of(uid), then, now) for uid in left}
    for change in filter(None, changes.values()):
        yield f"{change}; or drop the chain's state with allow_non_restored_state=True"
    missing = [uid for uid, change in changes.items() if change is None]
    if missing:
        added = [uid for uid in heads if uid not in {vertex.uid for vertex in vertices.values()}]
        instead = f" (but has {listed(added)}, of which the savepoint has no state)" if added else ""
        yield (
            f"it contains state of {listed(missing)}, but the program has no such operator{instead}: set uid() to"
            " the savepoint's uid, pass renamed={'old uid': 'new uid'}, or drop the state with"
            " allow_non_restored_state=True"
        )


def _compare(table: OperatorTable, vertex: Vertex, kind: str | None, wrong: list[str], warnings: list[str]) -> None:
    operator = f"operator {vertex.uid!r}"
    if kind and kind != vertex.kind:
        wrong.append(f"{operator} was created by {kind}(), and is now created by {vertex.kind}(), whose state differs")
    change = key_change(table.key, vertex.key)
    if change is not None:
        surely, what = change
        if surely:
            wrong.append(f"{operator}: {what}; the savepoint's keys would never match: restore the old key")
        else:
            warnings.append(f"{operator}: {what}: if it changes the keys, the savepoint's keys never match")
    change = state_change(table.depends_on, vertex.state_depends_on)
    if change is not None:
        surely, what = change
        if surely:
            what += ": give it another uid(), and drop the state with allow_non_restored_state=True"
        (wrong if surely else warnings).append(f"{operator}: {what}")


def _positions(positions: Any) -> Positions:
    if isinstance(positions, str) and positions in (SAVEPOINT, NONE):
        return positions
    if isinstance(positions, (list, tuple)) and all(map(_is_position, positions)):
        return tuple(map(_copied, positions))
    if isinstance(positions, Mapping) and all(
        isinstance(name, str) and _is_position(position) for name, position in positions.items()
    ):
        return {name: _copied(position) for name, position in positions.items()}
    raise ProgramError(
        'from_savepoint(): positions= must be "savepoint", "none", a dict from source names to positions,'
        f" or a list with one position per Spark source, not {shorten(positions)}. A position is None, or a"
        " dict or int as in Spark's offset log"
    )


def _is_position(position: Any) -> bool:
    return position is None or isinstance(position, (Mapping, int))


def _copied(position: Any) -> Any:
    return dict(position) if isinstance(position, Mapping) else position
