"""The declared types of columns, keys and elements, and the way from Python values to Arrow.

A stream becomes a DataFrame when its user declares the columns: see ``resolve_schema`` for the ways to say it.
``RowEncoder`` then turns records into Arrow batches, by column.
"""

from pillarbox.errors import TypeMismatchError
from pillarbox.types.conversion import converter
from pillarbox.types.row_encoder import RowEncoder
from pillarbox.types.schema import SchemaLike, resolve_schema
from pillarbox.types.type_information import TypeInformation, Types

__all__ = ["RowEncoder", "SchemaLike", "TypeInformation", "TypeMismatchError", "Types", "converter", "resolve_schema"]
