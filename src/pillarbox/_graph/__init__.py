"""A program as the user built it, and as a runtime runs it: vertices and levels."""

from pillarbox._graph.layout import Layout, Parallelisms, lay_out, subtask_places
from pillarbox._graph.program import Program, compile_program
from pillarbox._graph.targets import CODES, output_target
from pillarbox._graph.transformations import (
    ChainingStrategy,
    CollectionSource,
    DataFrameSource,
    EventTimeUse,
    KeyByTransformation,
    OperatorTransformation,
    PartitionTransformation,
    SideOutputTransformation,
    SinkTransformation,
    SourceTransformation,
    Transformation,
    UnionTransformation,
)

__all__ = [
    "CODES",
    "ChainingStrategy",
    "CollectionSource",
    "DataFrameSource",
    "EventTimeUse",
    "KeyByTransformation",
    "Layout",
    "OperatorTransformation",
    "Parallelisms",
    "PartitionTransformation",
    "Program",
    "SideOutputTransformation",
    "SinkTransformation",
    "SourceTransformation",
    "Transformation",
    "UnionTransformation",
    "compile_program",
    "lay_out",
    "output_target",
    "subtask_places",
]
