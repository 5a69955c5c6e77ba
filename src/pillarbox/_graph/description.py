"""Describes programs as JSON, stored next to checkpoints, and compares descriptions.

A comparison finds mistakes before a query starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pillarbox._errors import CheckpointMismatchError, advice_on_version, listed
from pillarbox._graph.first_operators import other_first_operator
from pillarbox._graph.layout import Layout
from pillarbox._graph.program import Program
from pillarbox._graph.targets import CODES
from pillarbox._graph.transformations import DataFrameSource, SourceTransformation
from pillarbox._state.keys.key_note import key_change
from pillarbox._state.keys.state_note import state_change

FORMAT = 1


def describe_programs(
    programs: Sequence[Program | ProgramDescription], layouts: Sequence[Layout] | None = None
) -> dict[str, Any]:
    every = [
        program if isinstance(program, ProgramDescription) else ProgramDescription.of(program) for program in programs
    ]
    of = [program.layout for program in every] if layouts is None else layouts
    return {"format": FORMAT, "programs": [program.with_layout(layout) for program, layout in zip(every, of)]}


@dataclass(frozen=True)
class ProgramDescription:
    """A program's description, without references to the program, which may be large."""

    layout: Layout
    content: Mapping[str, Any]
    parallelisms: tuple[int | None, ...]

    @staticmethod
    def of(program: Program) -> ProgramDescription:
        begun = {} if program.savepoint is None else {"savepoint": program.savepoint.directory}
        operators = [vertex for vertex in program.vertices if not vertex.is_source]
        content = {
            **begun,
            "max_parallelism_is_set": program.sets_max_parallelism,
            "processing_time": program.uses_processing_time,
            "sources": [{"name": source.name, "columns": _columns(source)} for source in program.sources.values()],
            "operators": [
                {
                    "uid": vertex.uid,
                    "number": vertex.number,
                    "level": vertex.level,
                    "kind": vertex.kind,
                    "name": vertex.nodes[0].name,
                    "key": vertex.key,
                    **({"depends_on": vertex.state_depends_on} if vertex.state_depends_on else {}),
                    "chain": [node.uid for node in vertex.nodes[1:]],
                }
                for vertex in operators
            ],
        }
        parallelisms = tuple(program.parallelisms[vertex.number] for vertex in operators)
        return ProgramDescription(program.layout, content, parallelisms)

    @property
    def uids(self) -> list[str]:
        return [operator["uid"] for operator in self.content["operators"]]

    def with_layout(self, layout: Layout) -> dict[str, Any]:
        return {
            **self.content,
            "parallelism": layout.subtasks,
            "max_parallelism": layout.key_groups,
            "operators": [
                {**operator, "parallelism": layout.count(parallelism)}
                for operator, parallelism in zip(self.content["operators"], self.parallelisms)
            ],
        }


def _columns(source: SourceTransformation) -> list[str] | None:
    if not isinstance(source, DataFrameSource):
        return None
    return [f"{field.name} {field.dataType.simpleString()}" for field in source.dataframe.schema.fields]


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object. Return {} for other text."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def read_description(text: str) -> dict[str, Any] | None:
    """Parse a stored description, or return None if it is incomplete."""
    description = json_object(text)
    if not all(isinstance(description.get(what), int) for what in ("format", "number", "batch")):
        return None
    written = description["format"]
    if written != FORMAT:
        raise CheckpointMismatchError(
            f"the program's description in the checkpoint has format {written}, but this version of pillarbox"
            f" reads format {FORMAT}: {advice_on_version(written, FORMAT)}, or use a new checkpoint directory"
        )
    programs = description.get("programs")
    return description if isinstance(programs, list) and all(map(_is_described, programs)) else None


class LayoutsNote(NamedTuple):
    """A checkpoint's note with its programs' layouts (numbers of subtasks).

    The note with the highest number is current.
    """

    number: int
    codes: int
    layouts: list[list[int]]

    def to_json(self) -> str:
        return json.dumps(self._asdict(), sort_keys=True)


def read_layouts(text: str) -> LayoutsNote | None:
    note = json_object(text)
    codes = note.get("codes")
    if not isinstance(codes, int):
        return None
    if codes != CODES:
        raise CheckpointMismatchError(
            f"the checkpoint numbers its subtasks by version {codes}, but this version of pillarbox by version"
            f" {CODES}: {advice_on_version(codes, CODES)}, or use a new checkpoint directory"
        )
    number, layouts = note.get("number"), note.get("layouts")
    return LayoutsNote(number, codes, layouts) if isinstance(number, int) and isinstance(layouts, list) else None


def _is_described(program: Any) -> bool:
    return isinstance(program, dict) and all(
        isinstance(program.get(what), list) and all(isinstance(entry, dict) for entry in program[what])
        for what in ("sources", "operators")
    )


@dataclass
class DescriptionDifferences:
    """The differences between two versions of a query's programs."""

    refused: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
    survives_savepoint: bool = True


def compare(then: dict[str, Any], now: dict[str, Any], *, is_committed: bool = True) -> DescriptionDifferences:
    """Compare a checkpoint's programs with the programs of a start.

    Args:
        is_committed: whether an epoch is committed. If only the first epoch has begun, there is no state yet, but Spark
            has stored each source's position, and whether the state depends on processing time.
    """
    comparison = DescriptionDifferences(survives_savepoint=is_committed)
    old, new = then["programs"], now["programs"]
    if len(old) != len(new):
        comparison.refused.append(f"the query had {_count(len(old), 'pillarbox program')}, and now has {len(new)}")
        comparison.survives_savepoint = False
        return comparison
    uids, new_uids = ([_uids_of(program) for program in programs] for programs in (old, new))
    if uids != new_uids and sorted(uids) == sorted(new_uids):
        comparison.refused.append(
            f"the query's programs have another order: their operators were {_listed(uids)}, and are now"
            f" {_listed(new_uids)}. Restore the order, by which Spark stores their state"
        )
        comparison.survives_savepoint = False
        return comparison
    for before, other in zip(old, new):
        _compare_programs(before, other, comparison, is_committed)
    return comparison


def _uids_of(program: dict[str, Any]) -> list[str]:
    return sorted(operator["uid"] for operator in program["operators"])


def _listed(uids: list[list[str]]) -> str:
    return "; ".join(listed(of_program) for of_program in uids)


def _compare_programs(
    then: dict[str, Any], now: dict[str, Any], comparison: DescriptionDifferences, is_committed: bool
) -> None:
    refused = comparison.refused
    was, now_is = then["parallelism"], now["parallelism"]
    # If it is not set, the checkpoint's value is used.
    if is_committed and was != now_is and now["max_parallelism_is_set"]:
        refused.append(
            f"max_parallelism was {was}, and is now {now_is}, but a checkpoint's value is fixed: call"
            f" set_max_parallelism({was}), or drop the call"
        )
    timed = now["processing_time"]
    if then["operators"] and now["operators"] and then["processing_time"] != timed:
        refused.append(
            f"it {'did not use' if timed else 'used'} processing time (timers, idleness or carried requests), but now"
            f" {'does' if timed else 'does not'}, and Spark stores that with the state: if it was detected wrongly,"
            f" pass process(..., processing_time={not timed})"
        )
    compare_sources(then["sources"], now["sources"], comparison)
    if not is_committed:
        return
    old = {operator["uid"]: operator for operator in then["operators"]}
    new = {operator["uid"]: operator for operator in now["operators"]}
    chains, new_chains = (
        {uid: operator.get("chain", ()) for uid, operator in operators.items()} for operators in (old, new)
    )
    changes = {uid: other_first_operator(uid, chains, new_chains) for uid in old if uid not in new}
    explained = list(filter(None, changes.values()))
    if explained:
        refused += explained
        comparison.survives_savepoint = False
    missing = [uid for uid, change in changes.items() if change is None]
    added = [uid for uid in new if uid not in old]
    if missing:
        hint = f" (but has {listed(added)}: set uid() to the old uid)" if added else ""
        refused.append(f"it contains state of {listed(missing)}, but the program has no such operator{hint}")
    levels, new_levels = ({operator["level"] for operator in operators.values()} for operators in (old, new))
    if len(new_levels) > len(levels):
        what = f" ({listed(added)} added)" if added else ""
        refused.append(
            f"there {_were(len(levels), 'shuffle')}, and now there {_are(len(new_levels))}{what}: Spark stores the"
            " state per shuffle"
        )
    for uid, before in old.items():
        after = new.get(uid)
        if after is not None:
            _compare_operators(before, after, moved_by=added, comparison=comparison)
            was, now_is = before["parallelism"], after["parallelism"]
            if was != now_is and (was, now_is) != (then["parallelism"], now["parallelism"]):
                refused.append(
                    f"operator {uid!r} had parallelism {was}, and now has {now_is}, but a checkpoint's value is fixed:"
                    f" call set_parallelism({was}) on the operator"
                )


def compare_sources(then: list[dict[str, Any]], now: list[dict[str, Any]], comparison: DescriptionDifferences) -> None:
    """Add the differences between a checkpoint's and a program's sources to ``comparison``."""
    names, new_names = ([source["name"] for source in sources] for sources in (then, now))
    if len(then) != len(now):
        comparison.refused.append(
            f"there {_were(len(then), 'source')} ({listed(names)}), and now there {_are(len(now))}"
            f" ({listed(new_names)}): Spark stores a position for each source"
        )
        return
    has_moved = len(set(names)) == len(names) and any(
        name in names and names.index(name) != position for position, name in enumerate(new_names)
    )
    if has_moved or (then != now and all(now.count(source) == then.count(source) for source in now)):
        comparison.refused.append(
            f"the sources were {'; '.join(map(_shown, then))}; and are now {'; '.join(map(_shown, now))}: restore their"
            " order, by which Spark stores their positions"
        )
        return
    for old, new in zip(then, now):
        if old["columns"] != new["columns"]:
            comparison.doubtful.append(
                f"a source was {_shown(old)}, and is now {_shown(new)}: Spark resumes it at the old position. If it"
                " reads other data, use a new checkpoint directory"
            )


def _shown(source: dict[str, Any]) -> str:
    columns = source["columns"]
    return repr(source["name"]) + ("" if columns is None else f" ({', '.join(columns)})")


def _compare_operators(
    then: dict[str, Any], now: dict[str, Any], moved_by: list[str], comparison: DescriptionDifferences
) -> None:
    operator = f"operator {then['uid']!r}"
    if (then["number"], then["level"]) != (now["number"], now["level"]):
        why = f": add {listed(moved_by)} after the other operators, not before" if moved_by else ""
        comparison.refused.append(f"{operator} has another position in the program, where its state is not found{why}")
    if then["kind"] != now["kind"]:
        comparison.refused.append(f"{operator} was created by {then['kind']}(), and is now created by {now['kind']}()")
        comparison.survives_savepoint = False
    change = key_change(then["key"], now["key"])
    if change is not None:
        surely, what = change
        comparison.survives_savepoint = comparison.survives_savepoint and not surely
        (comparison.refused if surely else comparison.doubtful).append(
            f"{operator}: {what}; old and new keys {'would' if surely else 'may'} mix in one state"
        )
    change = state_change(then.get("depends_on"), now.get("depends_on"))
    if change is not None:
        surely, what = change
        if surely:
            what += ": its unfinished state would be lost or mixed: give it another uid() and start from a savepoint"
        (comparison.refused if surely else comparison.doubtful).append(f"{operator}: {what}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _were(number: int, what: str) -> str:
    return ("was " if number == 1 else "were ") + _count(number, what)


def _are(number: int) -> str:
    return ("is " if number == 1 else "are ") + str(number)
