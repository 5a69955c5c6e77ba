"""``compile_program`` combines a program's steps into vertices and levels.

A vertex is a chain of operators. A chain ends at a shuffle, at a change of parallelism, and at an operator with
disabled chaining. A level contains the vertices between two shuffles. If a union merges several sources, each source's
vertex has a copy of the operators before the first shuffle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from uuid import uuid4

from pillarbox._errors import ProgramError
from pillarbox._graph.dashboard_place import DashboardAddress
from pillarbox._graph.dependence import dependence
from pillarbox._graph.event_time import check_event_time, parts_with_timeouts
from pillarbox._graph.layout import Layout, Parallelisms, lay_out, subtask_places
from pillarbox._graph.own_state import carries_on
from pillarbox._graph.picture import as_mermaid, as_text
from pillarbox._graph.savepoint_start import SavepointStart
from pillarbox._graph.targets import output_target
from pillarbox._graph.transformations import (
    ChainingStrategy,
    DataFrameSource,
    KeyByTransformation,
    OperatorTransformation,
    PartitionTransformation,
    SideOutputTransformation,
    SinkTransformation,
    SourceTransformation,
    Transformation,
)
from pillarbox._operators.stateless.pass_through import PASS_THROUGH
from pillarbox._state.keys.key_groups import default_max_parallelism
from pillarbox._state.keys.key_note import note_of_inputs
from pillarbox._task.network.partitioner import ForwardPartitioner, OutputPartitioner, Partitioner, RebalancePartitioner
from pillarbox._task.vertex import ChainNode, InputEdge, Vertex, VertexChainInput, VertexConsumers, VertexEdge, edge_id

_numbers = count(1)  # ids of this process's programs
# Shared, so that streams of a union share one edge.
_FORWARD = ForwardPartitioner()
_REBALANCE = RebalancePartitioner()


@dataclass
class Program:
    """A compiled program.

    Attributes:
        vertices: the vertices by number. Checkpoints refer to these numbers, which do not change if steps are added at
            the end.
        outputs: names of the outputs. The i-th output has the code ``output_target(i)``.
        parallelism: number of Spark partitions after a shuffle.
        max_parallelism: number of key groups. A streaming query has a subtask for each, so that the parallelism can
            change; a batch query has as many subtasks as its parallelism.
        layout: the layout, which a checkpoint may replace.
        parallelisms: the vertices' parallelisms, which a layout converts to numbers of subtasks.
        id: unique in the process. Later programs have higher ids.
        auto_rescale: whether a checkpoint may be rescaled to this parallelism.
    """

    name: str
    vertices: list[Vertex]
    sources: dict[int, SourceTransformation]
    outputs: list[str]
    parallelism: int
    max_parallelism: int
    layout: Layout
    parallelisms: Parallelisms = ()
    id: str = field(default_factory=lambda: f"{next(_numbers) % 16**4:04x}{uuid4().hex[:8]}")
    sets_parallelism: bool = True
    sets_max_parallelism: bool = False
    auto_rescale: bool = False
    batch: bool = False
    savepoint: SavepointStart | None = None
    dashboard: DashboardAddress | None = None
    serials: Mapping[str, int] = field(default_factory=dict)

    @property
    def subtasks(self) -> Mapping[int, tuple[int, int]]:
        """A map from subtask codes to (vertex number, subtask)."""
        return subtask_places(self.parallelisms, self.layout)

    def lay_out(self, layout: Layout) -> None:
        """Replace the layout."""
        self.layout = layout
        for vertex in self.vertices:
            lay_out(vertex, layout)
            vertex.partitions = self.parallelism

    @property
    def uses_processing_time(self) -> bool:
        """Whether the passage of wall-clock time may cause work even without data."""
        return any(vertex.uses_processing_time for vertex in self.vertices)

    @property
    def levels(self) -> list[list[Vertex]]:
        depth = max(vertex.level for vertex in self.vertices)
        return [[v for v in self.vertices if v.level == level] for level in range(depth + 1)]

    def edges(self) -> Iterator[tuple[Vertex, VertexEdge, Vertex | str]]:
        """Yield all edges as (sender, edge, receiver). A receiver is a vertex or an output's name."""
        for vertex in self.vertices:
            for edge in vertex.edges:
                receiver = edge.receiver
                yield vertex, edge, receiver if isinstance(receiver, str) else self.vertices[receiver]

    def to_text(self) -> str:
        """Return the plan as text."""
        return as_text(self)

    def to_mermaid(self) -> str:
        """Return the plan as a Mermaid flowchart."""
        return as_mermaid(self)

    def __str__(self) -> str:
        return self.to_text()


@dataclass(frozen=True)
class _Link:
    """An operator that consumes a stream, and the partitioning between the stream and the operator."""

    consumer: OperatorTransformation
    index: int
    partition: PartitionTransformation | None
    tag_id: str | None


class _Compiler:
    def __init__(
        self,
        name: str,
        sinks: list[SinkTransformation],
        parallelism: int,
        max_parallelism: int | None,
        chaining: bool,
        batch: bool,
    ) -> None:
        self._chaining = chaining
        # Parallelism by vertex: 0 for a source, None if it depends on the layout.
        self._parallelisms: list[int | None] = []
        # Consumers of each step, with the index of the input.
        self._children: dict[Transformation, list[tuple[Transformation, int]]] = {}
        self._heads: dict[OperatorTransformation, Vertex] = {}
        self._sources: list[SourceTransformation] = []
        # Upstream watermark assigners, by (vertex number, edge id).
        self._assigners: defaultdict[tuple[int, int], set[OperatorTransformation]] = defaultdict(set)
        for sink in sinks:
            self._reach(sink)
        streaming = any(isinstance(step, DataFrameSource) and step.dataframe.isStreaming for step in self._sources)
        own = (step.parallelism or 1 for step in self._children if isinstance(step, OperatorTransformation))
        most = max_parallelism or default_max_parallelism(parallelism, *own)
        layout = Layout(most if streaming else parallelism, most)
        # The first start sets a streaming query's default number of subtasks, so chaining must not depend on it.
        self._layout_is_known = not streaming or max_parallelism is not None
        outputs = [sink.output for sink in sinks if sink.output is not None]
        self._program = Program(name, [], {}, outputs, parallelism, most, layout, batch=batch)
        self._program.sets_max_parallelism = max_parallelism is not None
        self._check_uids()
        self._check_parallelism()
        check_event_time(self._children, batch=batch)

    def _reach(self, sink: SinkTransformation) -> None:
        """Add the steps that lead to a sink, inputs first. Does not recurse, because chains may be long."""
        pending: list[tuple[Transformation, int]] = [(sink, 0)] if sink not in self._children else []
        self._children.setdefault(sink, [])
        while pending:
            step, index = pending.pop()
            if index == len(step.inputs):
                continue
            upstream = step.inputs[index]
            if upstream in self._children:
                self._children[upstream].append((step, index))
                pending.append((step, index + 1))
                continue
            self._children[upstream] = []
            if isinstance(upstream, SourceTransformation):
                self._sources.append(upstream)
            pending += [(step, index), (upstream, 0)]

    def _check_uids(self) -> None:
        seen: dict[str, OperatorTransformation] = {}
        for step in self._children:
            if isinstance(step, OperatorTransformation):
                other = seen.setdefault(step.effective_uid, step)
                if other is not step:
                    raise ProgramError(
                        f"two operators have the uid {step.effective_uid!r} ({other.name!r} and {step.name!r}): change"
                        " one, because state is stored under the uid"
                    )
        self._program.serials = {uid: step.serial for uid, step in seen.items()}

    def _check_parallelism(self) -> None:
        most = self._program.max_parallelism
        if self._program.parallelism > most:
            raise ProgramError(
                f"parallelism {self._program.parallelism} is above the max parallelism {most}, so some subtasks"
                " would have no key group: raise set_max_parallelism(), or lower set_parallelism()"
            )
        for step in self._children:
            if isinstance(step, OperatorTransformation) and (step.parallelism or 1) > most:
                raise ProgramError(
                    f"operator {step.name!r} has parallelism {step.parallelism}, above the max parallelism {most}, so"
                    " some subtasks would have no key group: call"
                    f" env.set_max_parallelism({step.parallelism}), or lower the operator's parallelism"
                )

    def compile(self) -> Program:
        for source in sorted(self._sources, key=lambda step: step.number):
            vertex = self._new_vertex(source.name, "", 0)
            self._program.sources[vertex.number] = source
            vertex.nodes.append(ChainNode(source.name, "", PASS_THROUGH))
            self._grow(vertex, source)
        pending = list(self._heads.items())
        grown: set[OperatorTransformation] = set()
        while pending:
            for head, vertex in pending:
                grown.add(head)
                self._grow(vertex, head)
            pending = [(head, vertex) for head, vertex in self._heads.items() if head not in grown]
        program = self._program
        program.parallelisms = tuple(self._parallelisms)
        for vertex in program.vertices:
            vertex.parallelisms = program.parallelisms
        program.lay_out(program.layout)
        self._set_levels()
        return program

    def _new_vertex(self, name: str, uid: str, parallelism: int | None) -> Vertex:
        program = self._program
        self._parallelisms.append(parallelism)
        vertex = Vertex(
            number=len(program.vertices),
            name=name,
            uid=uid,
            level=0,
            parallelism=program.layout.count(parallelism),
            max_parallelism=program.layout.key_groups,
            nodes=[],
            edges=[],
            inputs=[],
            batch=program.batch,
        )
        program.vertices.append(vertex)
        return vertex

    def _links(self, step: Transformation) -> Iterator[_Link]:
        partition: PartitionTransformation | None = None
        tag_id: str | None = None
        pending = [(child, index, partition, tag_id) for child, index in reversed(self._children[step])]
        while pending:
            child, index, partition, tag_id = pending.pop()
            if isinstance(child, OperatorTransformation):
                yield _Link(child, index, partition, tag_id)
                continue
            if isinstance(child, PartitionTransformation):
                partition = child  # the last partitioning applies
            elif isinstance(child, SideOutputTransformation):
                tag_id = child.tag_id
            pending += [(step, index, partition, tag_id) for step, index in reversed(self._children[child])]

    def _ways(self, vertex: Vertex, step: Transformation) -> Iterator[tuple[_Link, Partitioner | None]]:
        for link in self._links(step):
            yield link, self._way(vertex, step, link)

    def _way(self, vertex: Vertex, step: Transformation, link: _Link) -> Partitioner | None:
        consumer = link.consumer
        partitioner = None if link.partition is None else link.partition.partitioner
        if partitioner is not None and not isinstance(partitioner, ForwardPartitioner):
            return partitioner
        own = self._parallelism_behind(vertex, consumer)
        if not self._are_alike(own, self._parallelisms[vertex.number]):
            if partitioner is None:
                return _REBALANCE
            before = f"parallelism {vertex.parallelism}" if vertex.parallelism else "the partitions of its source"
            raise ProgramError(
                f"forward() keeps each record in its subtask, but {step.name!r} has {before}, and {consumer.name!r}"
                f" parallelism {self._program.layout.count(own)}: drop forward(), or call rebalance(), rescale() or"
                " global_() instead"
            )
        if self._may_chain(step, consumer) and (partitioner is None or len(consumer.inputs) == 1):
            return None
        return partitioner or _FORWARD

    def _parallelism_behind(self, vertex: Vertex, consumer: OperatorTransformation) -> int | None:
        if consumer.parallelism is not None:
            return consumer.parallelism
        # A sink runs in its input's subtasks.
        stays = vertex.is_source or isinstance(consumer, SinkTransformation)
        return self._parallelisms[vertex.number] if stays else None

    def _are_alike(self, first: int | None, other: int | None) -> bool:
        if first == other:
            return True
        count = self._program.layout.count
        return self._layout_is_known and count(first) == count(other)

    def _may_chain(self, step: Transformation, consumer: OperatorTransformation) -> bool:
        if isinstance(consumer, SinkTransformation) and consumer.output is not None:
            return True  # an output is not a user operator
        never = isinstance(step, OperatorTransformation) and step.chaining is ChainingStrategy.NEVER
        return self._chaining and not never and consumer.chaining is ChainingStrategy.ALWAYS

    def _chain(self, vertex: Vertex, start: Transformation) -> list[Transformation]:
        backwards: list[Transformation] = []
        seen: set[Transformation] = {start}
        pending = [(start, self._chained(vertex, start))]
        while pending:
            step, consumers = pending[-1]
            if not consumers:
                backwards.append(step)
                pending.pop()
            elif (consumer := consumers.pop()) not in seen:
                seen.add(consumer)
                pending.append((consumer, self._chained(vertex, consumer)))
        return backwards[::-1]

    def _chained(self, vertex: Vertex, step: Transformation) -> list[Transformation]:
        return [link.consumer for link, way in self._ways(vertex, step) if way is None]

    def _grow(self, vertex: Vertex, start: Transformation) -> None:
        steps = self._chain(vertex, start)
        nodes = {step: index for index, step in enumerate(steps)}
        assigners = self._assigners_in(vertex, steps)
        for step in steps[1:]:
            assert isinstance(step, OperatorTransformation)
            is_sink = isinstance(step, SinkTransformation)
            vertex.nodes.append(ChainNode(step.name, step.effective_uid, step.factory, is_sink=is_sink))
            if isinstance(step, SinkTransformation) and step.output is not None:
                self._connect_output(vertex, vertex.nodes[-1].output, step)
        for step, node in zip(steps, vertex.nodes):
            for link, way in self._ways(vertex, step):
                consumers = node.output
                if link.tag_id is not None:
                    consumers = node.side_outputs.setdefault(link.tag_id, VertexConsumers())
                if way is None:
                    consumers.nodes.append(VertexChainInput(nodes[link.consumer], link.index))
                else:
                    edge = self._connect(vertex, consumers, link, way, step.name, assigners[step])
                    self._assigners[edge] |= assigners[step]
        vertex.name = " -> ".join(node.name for node in vertex.nodes)

    def _assigners_in(
        self, vertex: Vertex, steps: list[Transformation]
    ) -> dict[Transformation, set[OperatorTransformation]]:
        """Map each step of a chain to the nearest upstream steps that assign a watermark strategy."""
        assigners: dict[Transformation, set[OperatorTransformation]] = {step: set() for step in steps}
        for step in steps:
            if isinstance(step, OperatorTransformation) and step.strategy is not None:
                strategy = step.strategy
                assigners[step] = {step}
                if strategy.idle_timeout is not None and not vertex.is_source:
                    vertex.uses_processing_time = True  # it becomes idle without data
                if strategy.progress_timeout is not None and not vertex.is_source:
                    raise ProgramError(
                        f"operator {step.name!r}: with_wall_clock_progress() works only for sources: assign the"
                        " strategy before the first key_by(...) or rebalance()"
                    )
            for link, way in self._ways(vertex, step):
                if way is None:
                    parts = self._silent_parts(vertex, link.consumer, assigners[link.consumer], assigners[step])
                    if parts:
                        raise ProgramError(
                            f"operator {parts[0].name!r}: before the first shuffle, only a whole source can become"
                            f" idle, but {link.consumer.name!r} combines parts of it with different strategies: assign"
                            " one strategy after union(...), or, for with_idleness(...), call rebalance() on each part"
                            " before its strategy"
                        )
                    assigners[link.consumer] |= assigners[step]
        return assigners

    def _silent_parts(
        self,
        vertex: Vertex,
        consumer: OperatorTransformation,
        assigners: set[OperatorTransformation],
        more: set[OperatorTransformation],
    ) -> list[OperatorTransformation]:
        has_parts = vertex.is_source and not vertex.batch and consumer.strategy is None
        return parts_with_timeouts(assigners, more) if has_parts else []

    def _connect(
        self,
        vertex: Vertex,
        consumers: VertexConsumers,
        link: _Link,
        partitioner: Partitioner,
        sender: str,
        assigners: set[OperatorTransformation],
    ) -> tuple[int, int]:
        """Connect a stream to its consumer's vertex. Return (vertex number, edge id)."""
        head = self._heads.get(link.consumer)
        if head is None:
            stays = isinstance(partitioner, ForwardPartitioner) and not vertex.is_source
            head = self._new_head(link.consumer, self._parallelisms[vertex.number] if stays else None)
        between = [position for position, edge in enumerate(vertex.edges) if edge.receiver == head.number]
        for position in between:
            edge = vertex.edges[position]
            # Streams of a union before the shuffle share one edge, unless their silence is measured.
            others = self._assigners[head.number, edge.id]
            if (
                edge.partitioner is partitioner
                and edge.index == link.index
                and not self._silent_parts(vertex, link.consumer, others, assigners)
            ):
                if sender not in edge.sender.split(", "):
                    edge.sender += f", {sender}"
                consumers.edges.append(position)
                return head.number, edge.id
        input_edge = InputEdge(
            vertex.number, vertex.parallelism, ordinal=len(between), index=link.index, partitioner=partitioner
        )
        head.inputs.append(input_edge)
        consumers.edges.append(len(vertex.edges))
        vertex.edges.append(
            VertexEdge(head.number, link.index, input_edge.id, [], partitioner, vertex.max_parallelism, sender)
        )
        return head.number, input_edge.id

    def _new_head(self, consumer: OperatorTransformation, before: int | None) -> Vertex:
        parallelism = consumer.parallelism
        if parallelism is None and isinstance(consumer, SinkTransformation):
            parallelism = before
        head = self._new_vertex(consumer.name, consumer.effective_uid, parallelism)
        head.nodes.append(ChainNode(consumer.name, consumer.effective_uid, consumer.factory))
        head.uses_processing_time = consumer.uses_processing_time
        head.kind = consumer.kind
        notes = [step.note() for step in consumer.inputs if isinstance(step, KeyByTransformation)]
        head.key = note_of_inputs(notes)
        head.state_depends_on = dependence(consumer, self._sources)
        self._heads[consumer] = head
        if isinstance(consumer, SinkTransformation) and consumer.output is not None:
            self._connect_output(head, head.nodes[0].output, consumer)
        return head

    def _connect_output(self, vertex: Vertex, consumers: VertexConsumers, sink: SinkTransformation) -> None:
        assert sink.output is not None
        consumers.edges.append(len(vertex.edges))
        target = output_target(self._program.outputs.index(sink.output))
        partitioner, sender = OutputPartitioner(at_once=sink.limit is not None), sink.inputs[0].name
        vertex.edges.append(
            VertexEdge(sink.output, 0, edge_id(vertex.number), [target], partitioner, vertex.max_parallelism, sender)
        )

    def _set_levels(self) -> None:
        vertices = self._program.vertices
        for _ in vertices:
            for vertex in vertices:
                for edge in vertex.inputs:
                    vertex.level = max(vertex.level, vertices[edge.vertex].level + 1)
        places = tuple(sorted((vertex.uid, vertex.number, vertex.level) for vertex in vertices if not vertex.is_source))
        for vertex in vertices:
            vertex.program = places
        for vertex in vertices:
            vertex.inputs = [self._with_timeouts(vertex, edge) for edge in vertex.inputs]
            if any(edge.reacts_to_silence for edge in vertex.inputs):
                vertex.uses_processing_time = True
            if carries_on(vertex):
                vertex.uses_processing_time = True

    def _with_timeouts(self, vertex: Vertex, edge: InputEdge) -> InputEdge:
        assigners = self._assigners[vertex.number, edge.id]
        strategies = [step.strategy for step in assigners if step.strategy is not None]
        return replace(
            edge,
            idle_timeout=_longest(strategy.idle_timeout for strategy in strategies),
            progress_timeout=_longest(strategy.progress_timeout for strategy in strategies),
        )


def _longest(timeouts: Iterable[int | None]) -> int | None:
    every = list(timeouts)
    return None if None in every else max((timeout for timeout in every if timeout is not None), default=None)


def compile_program(
    name: str,
    sinks: list[SinkTransformation],
    parallelism: int,
    max_parallelism: int | None = None,
    *,
    chaining: bool = True,
    batch: bool = False,
) -> Program:
    if not sinks:
        raise ProgramError(
            "the program has no output: end a stream with to_dataframe(...), execute_and_collect() or print()"
        )
    compiler = _Compiler(name, sinks, parallelism, max_parallelism, chaining, batch)
    return compiler.compile()
