"""A program as the user built it, and as a runtime runs it: vertices and levels."""

from pillarbox.graph.program import Program, compile_program
from pillarbox.graph.targets import CODES, output_target
from pillarbox.graph.transformations import (
    ChainingStrategy,
    CollectionSource,
    DataFrameSource,
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
    "KeyByTransformation",
    "OperatorTransformation",
    "PartitionTransformation",
    "Program",
    "SideOutputTransformation",
    "SinkTransformation",
    "SourceTransformation",
    "Transformation",
    "UnionTransformation",
    "compile_program",
    "output_target",
]
