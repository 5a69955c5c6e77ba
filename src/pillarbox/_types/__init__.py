"""The declared types of columns, keys and elements, and the way from Python values to Arrow.

A stream becomes a DataFrame when its user declares the columns: see ``resolve_schema`` for the ways to say it.
``RowEncoder`` then turns records into Arrow batches, by column.
"""

from pillarbox._errors import TypeMismatchError
from pillarbox._types.conversion import value_converter
from pillarbox._types.row_encoder import RowEncoder
from pillarbox._types.schema import SchemaLike, resolve_schema
from pillarbox._types.type_information import TypeInformation, Types

__all__ = [
    "RowEncoder",
    "SchemaLike",
    "TypeInformation",
    "TypeMismatchError",
    "Types",
    "resolve_schema",
    "value_converter",
]
