"""From the program as it was built to vertices and levels, and a picture of them.

A vertex is a chain of operators; a chain ends where a stream is spread over subtasks, where the next operator has
another parallelism, and where the user says so. The operators between a source and the first ``key_by`` or
``rebalance`` run in the source's vertex; where several sources meet in a union, each has them in its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from uuid import uuid4

from pillarbox._errors import ProgramError
from pillarbox._graph.dashboard_place import DashboardPlace
from pillarbox._graph.dependence import dependence
from pillarbox._graph.event_time import check_event_time
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
from pillarbox._task.vertex import ChainInput, ChainNode, Consumers, Edge, InputEdge, Vertex, edge_id
from pillarbox._time.watermark_strategy import WatermarkStrategy

# Between operators that are not chained, where the user partitions nothing. Streams that meet there share one edge.
_numbers = count(1)  # of the programs of this process
_FORWARD = ForwardPartitioner()
_REBALANCE = RebalancePartitioner()


@dataclass
class Program:
    """A compiled program, as a runtime runs it.

    Attributes:
        vertices: by number, which a checkpoint knows them by: one that is added last changes no other.
        sources: the source of each vertex of level 0, by vertex number.
        outputs: names of the outputs; output *i* has the code ``output_target(i)``.
        parallelism: how many subtasks run at a time: Spark's partitions after a shuffle.
        max_parallelism: number of key groups. In a streaming query of Spark each is a subtask of its own, so that the
            parallelism may change; else there are as many subtasks as the parallelism says.
        layout: the subtasks that it was compiled with; a checkpoint that it resumes from may have another.
        parallelisms: the numbers of subtasks of its vertices.
        id: unique; a later program of this process has a higher one.
        sets_parallelism: whether the user has set the parallelism.
        sets_max_parallelism: whether the user has set the max parallelism.
        batch: whether it runs in batch mode.
        uses_processing_time: whether the program needs to be run when there is no data.
        auto_rescale: whether the partitions of a checkpoint may be changed to these.
        savepoint: where it starts from on a new checkpoint; None: with no state.
        dashboard: where the driver opens the dashboard for the query; None: it opens none.
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
    dashboard: DashboardPlace | None = None

    @property
    def subtasks(self) -> Mapping[int, tuple[int, int]]:
        """Vertex number and subtask of each code."""
        return subtask_places(self.parallelisms, self.layout)

    def lay_out(self, layout: Layout) -> None:
        """Take another layout than the program was compiled with."""
        self.layout = layout
        for vertex in self.vertices:
            lay_out(vertex, layout)
            vertex.partitions = self.parallelism

    @property
    def uses_processing_time(self) -> bool:
        """Whether something has to happen by the wall clock, also without data."""
        return any(vertex.uses_processing_time for vertex in self.vertices)

    @property
    def levels(self) -> list[list[Vertex]]:
        """The vertices by level."""
        depth = max(vertex.level for vertex in self.vertices)
        return [[v for v in self.vertices if v.level == level] for level in range(depth + 1)]

    def edges(self) -> Iterator[tuple[Vertex, Edge, Vertex | str]]:
        """Return all edges: sender, edge, receiver (a vertex or the name of an output)."""
        for vertex in self.vertices:
            for edge in vertex.edges:
                receiver = edge.receiver
                yield vertex, edge, receiver if isinstance(receiver, str) else self.vertices[receiver]

    def to_text(self) -> str:
        """Return the plan as text: one line a vertex, its ways out below it."""
        return as_text(self)

    def to_mermaid(self) -> str:
        """Return the plan as a Mermaid flowchart."""
        return as_mermaid(self)

    def __str__(self) -> str:
        return self.to_text()


@dataclass(frozen=True)
class _Link:
    """A consumer of a stream, with the virtual steps between resolved.

    Attributes:
        consumer: the operator.
        index: which of its inputs takes the stream.
        partition: the step that spreads the stream before it; None: there is none.
        tag_id: the side output that the stream is; None: the main output.
    """

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
        # Of each vertex: the number of its subtasks, where it does not depend on the layout; 0: it is a source.
        self._parallelisms: list[int | None] = []
        # The consumers of each step's stream, and which of their inputs.
        self._children: dict[Transformation, list[tuple[Transformation, int]]] = {}
        self._heads: dict[OperatorTransformation, Vertex] = {}
        self._sources: list[SourceTransformation] = []
        # Where the watermarks of each way into a vertex come from, by the numbers of vertex and edge.
        self._strategies: defaultdict[tuple[int, int], set[WatermarkStrategy]] = defaultdict(set)
        for sink in sinks:
            self._reach(sink)
        streaming = any(isinstance(each, DataFrameSource) and each.dataframe.isStreaming for each in self._sources)
        own = (step.parallelism or 1 for step in self._children if isinstance(step, OperatorTransformation))
        most = max_parallelism or default_max_parallelism(parallelism, *own)
        layout = Layout(most if streaming else parallelism, most)
        # The number of subtasks that a streaming query has by default is that of its first start, whatever it is now:
        # which operators are chained must not depend on it.
        self._layout_is_known = not streaming or max_parallelism is not None
        outputs = [sink.output for sink in sinks if sink.output is not None]
        self._program = Program(name, [], {}, outputs, parallelism, most, layout, batch=batch)
        self._program.sets_max_parallelism = max_parallelism is not None
        self._check_uids()
        self._check_parallelism()
        check_event_time(self._children, batch=batch)

    def _reach(self, sink: SinkTransformation) -> None:
        """Take in all steps that lead to a sink, each after its inputs; there may be more than calls can nest."""
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
                        f"two operators have the uid {step.effective_uid!r} ({other.name!r} and {step.name!r}):"
                        " a uid must be unique in the program, its state is stored under it"
                    )

    def _check_parallelism(self) -> None:
        most = self._program.max_parallelism
        if self._program.parallelism > most:
            raise ProgramError(
                f"parallelism {self._program.parallelism} is above the max parallelism {most}: some subtasks would own"
                " no key group; raise set_max_parallelism(), or lower set_parallelism()"
            )
        for step in self._children:
            if isinstance(step, OperatorTransformation) and (step.parallelism or 1) > most:
                raise ProgramError(
                    f"operator {step.name!r} has parallelism {step.parallelism}, above the max parallelism {most}: some"
                    f" subtasks would own no key group; raise it, with env.set_max_parallelism({step.parallelism}),"
                    " or lower the operator's parallelism"
                )

    def compile(self) -> Program:
        # Each source with the vertices next to it, then those further on.
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
                partition = child  # of several in a row, the last one holds
            elif isinstance(child, SideOutputTransformation):
                tag_id = child.tag_id
            pending += [(each, place, partition, tag_id) for each, place in reversed(self._children[child])]

    def _ways(self, vertex: Vertex, step: Transformation) -> Iterator[tuple[_Link, Partitioner | None]]:
        """Return the consumers of a step in a vertex, and how its stream is spread before each; None: it is chained."""
        for link in self._links(step):
            yield link, self._way(vertex, step, link)

    def _way(self, vertex: Vertex, step: Transformation, link: _Link) -> Partitioner | None:
        consumer = link.consumer
        given = None if link.partition is None else link.partition.partitioner
        if given is not None and not isinstance(given, ForwardPartitioner):
            return given
        wanted = self._parallelism_behind(vertex, consumer)
        if not self._are_alike(wanted, self._parallelisms[vertex.number]):
            if given is None:
                return _REBALANCE
            before = f"parallelism {vertex.parallelism}" if vertex.parallelism else "the partitions of its source"
            raise ProgramError(
                f"forward() keeps each record in its subtask, but {step.name!r} has {before}, and {consumer.name!r}"
                f" parallelism {self._program.layout.count(wanted)}: leave out forward(), or say rebalance(), rescale()"
                " or global_() instead"
            )
        if self._may_chain(step, consumer) and (given is None or len(consumer.inputs) == 1):
            return None
        return given or _FORWARD

    def _parallelism_behind(self, vertex: Vertex, consumer: OperatorTransformation) -> int | None:
        """Return the parallelism of an operator whose stream is not partitioned; None: the program's."""
        if consumer.parallelism is not None:
            return consumer.parallelism
        # A sink works where its records are made.
        stays = vertex.is_source or isinstance(consumer, SinkTransformation)
        return self._parallelisms[vertex.number] if stays else None

    def _are_alike(self, one: int | None, other: int | None) -> bool:
        """Return whether two operators have the same number of subtasks, whatever the checkpoint's layout is."""
        if one == other:
            return True
        count = self._program.layout.count
        return self._layout_is_known and count(one) == count(other)

    def _may_chain(self, step: Transformation, consumer: OperatorTransformation) -> bool:
        if isinstance(consumer, SinkTransformation) and consumer.output is not None:
            return True  # the way out of the program is no operator of the user's
        never = isinstance(step, OperatorTransformation) and step.chaining is ChainingStrategy.NEVER
        return self._chaining and not never and consumer.chaining is ChainingStrategy.ALWAYS

    def _chain(self, vertex: Vertex, start: Transformation) -> list[Transformation]:
        """Return ``start`` and all steps that are chained to it, each after those it takes records from."""
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
        """Chain to the vertex everything after ``start`` that is chained to it."""
        steps = self._chain(vertex, start)
        nodes = {step: index for index, step in enumerate(steps)}
        strategies = self._strategies_in(vertex, steps)
        for step in steps[1:]:
            assert isinstance(step, OperatorTransformation)
            vertex.nodes.append(ChainNode(step.name, step.effective_uid, step.factory))
            if isinstance(step, SinkTransformation) and step.output is not None:
                self._connect_output(vertex, vertex.nodes[-1].output, step)
        for step, node in zip(steps, vertex.nodes):
            for link, way in self._ways(vertex, step):
                consumers = node.output
                if link.tag_id is not None:
                    consumers = node.side_outputs.setdefault(link.tag_id, Consumers())
                if way is None:
                    consumers.nodes.append(ChainInput(nodes[link.consumer], link.index))
                else:
                    head, way_in = self._connect(vertex, consumers, link, way, step.name)
                    self._strategies[head, way_in] |= strategies[step]
        vertex.name = " -> ".join(node.name for node in vertex.nodes)

    def _strategies_in(
        self, vertex: Vertex, steps: list[Transformation]
    ) -> dict[Transformation, set[WatermarkStrategy]]:
        """Return where the watermarks after each step of a chain come from: the nearest strategies in the chain."""
        found: dict[Transformation, set[WatermarkStrategy]] = {step: set() for step in steps}
        for step in steps:
            strategy = step.strategy if isinstance(step, OperatorTransformation) else None
            if strategy is not None:
                found[step] = {strategy}
                if strategy.idle_timeout is not None and not vertex.is_source:
                    vertex.uses_processing_time = True  # it becomes idle also when there are no data at all
                if strategy.progress_timeout is not None and not vertex.is_source:
                    raise ProgramError(
                        f"operator {step.name!r}: with_wall_clock_progress() is about the silence of a source: assign"
                        " the strategy before the first key_by(...) or rebalance()"
                    )
            for link, way in self._ways(vertex, step):
                if way is None:
                    found[link.consumer] |= found[step]
        return found

    def _connect(
        self, vertex: Vertex, consumers: Consumers, link: _Link, partitioner: Partitioner, sender: str
    ) -> tuple[int, int]:
        """Lead a stream out of its vertex, to the vertex whose head is its consumer.

        Returns:
            the number of that vertex, and the number by which it knows the way in.
        """
        head = self._heads.get(link.consumer)
        if head is None:
            stays = isinstance(partitioner, ForwardPartitioner) and not vertex.is_source
            head = self._new_head(link.consumer, self._parallelisms[vertex.number] if stays else None)
        between = [place for place, edge in enumerate(vertex.edges) if edge.receiver == head.number]
        for place in between:
            edge = vertex.edges[place]
            # Streams of this vertex that meet in a union before the shuffle share one edge.
            if edge.partitioner is partitioner and edge.index == link.index:
                if sender not in edge.sender.split(", "):
                    edge.sender += f", {sender}"
                consumers.edges.append(place)
                return head.number, edge.id
        way_in = InputEdge(
            vertex.number, vertex.parallelism, ordinal=len(between), index=link.index, partitioner=partitioner
        )
        head.inputs.append(way_in)
        consumers.edges.append(len(vertex.edges))
        vertex.edges.append(Edge(head.number, link.index, way_in.id, [], partitioner, vertex.max_parallelism, sender))
        return head.number, way_in.id

    def _new_head(self, consumer: OperatorTransformation, before: int | None) -> Vertex:
        """Begin a vertex with an operator after a shuffle.

        Args:
            before: the parallelism of the operator before it, where a sink follows it; None: the program's.
        """
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

    def _connect_output(self, vertex: Vertex, consumers: Consumers, sink: SinkTransformation) -> None:
        assert sink.output is not None
        consumers.edges.append(len(vertex.edges))
        target = output_target(self._program.outputs.index(sink.output))
        partitioner, sender = OutputPartitioner(at_once=sink.limit is not None), sink.inputs[0].name
        vertex.edges.append(
            Edge(sink.output, 0, edge_id(vertex.number), [target], partitioner, vertex.max_parallelism, sender)
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
        strategies = self._strategies[vertex.number, edge.id]
        return replace(
            edge,
            idle_timeout=_longest(strategy.idle_timeout for strategy in strategies),
            progress_timeout=_longest(strategy.progress_timeout for strategy in strategies),
        )


def _longest(timeouts: Iterable[int | None]) -> int | None:
    """Return the longest timeout; None, which is for ever, where one is, or where there are none."""
    found = list(timeouts)
    return None if None in found else max((timeout for timeout in found if timeout is not None), default=None)


def compile_program(
    name: str,
    sinks: list[SinkTransformation],
    parallelism: int,
    max_parallelism: int | None = None,
    *,
    chaining: bool = True,
    batch: bool = False,
) -> Program:
    """Turn the steps that lead to ``sinks`` into a program.

    Args:
        max_parallelism: the number of key groups; None: the default.

    Raises:
        ProgramError: there is no sink, two operators share a uid, or a parallelism is above the max parallelism.
    """
    if not sinks:
        raise ProgramError(
            "the program has no output: end a stream with to_dataframe(...), execute_and_collect() or print()"
        )
    compiler = _Compiler(name, sinks, parallelism, max_parallelism, chaining, batch)
    return compiler.compile()
