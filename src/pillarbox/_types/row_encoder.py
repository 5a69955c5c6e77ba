"""From the records of a stream to Arrow batches with the declared columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyspark.sql.types as spark

from pillarbox._errors import ProgramError, TypeMismatchError, shorten_record
from pillarbox._types.codecs import MISFITS, struct_codec, time_zone
from pillarbox._types.conversion import Misfit, row_converter
from pillarbox._types.schema import resolve_schema
from pillarbox._types.type_information import TypeInformation


class RowEncoder:
    """Encodes the records of a stream as Arrow batches with the declared columns.

    A record may be

    - a tuple or list, or a row without names, by position;
    - a ``Row``, a named tuple, or a PySpark ``Row``, by name: it has the declared names, in any order;
    - a dict, by name; a key that is not declared is an error, and a missing one is null;
    - a dataclass instance, by name, with the same rules;
    - if there is just one column: the bare value. Of tuples, lists, dicts and dataclasses, only a
      list for an ARRAY column and a dict for a MAP column count as bare.

    The same holds for values of STRUCT columns (they are never bare). Values have to be of the
    declared types; ints may stand for floats and decimals, aware datetimes may be in any time zone,
    and naive ones are taken in the session's where the type has one.

    It is fastest when all records of a batch are of one type.

    Args:
        schema: the declared columns, at least one.
        operator: the name of the operator whose records these are, for error messages.
        timezone: the session's time zone, as in ``spark.sql.session.timeZone``; None: naive datetimes are refused.
        bare: whether records are bare values of the one column, as the values of Types.LONG() are; False: they are not,
            as the values of Types.ROW(...) are; None: there may be both.

    Raises:
        ProgramError: a column's type cannot be made from Python values, or there are no columns.
        ConfigurationError: the time zone is not known.
    """

    def __init__(
        self, schema: spark.StructType, operator: str, timezone: str | None = "UTC", bare: bool | None = None
    ) -> None:
        if not schema.fields:
            raise ProgramError("no columns are declared; declare at least one")
        self._arguments = (schema, operator, timezone, bare)
        self._operator = operator
        self._row = struct_codec(schema, None if timezone is None else time_zone(timezone))
        self._to_row = row_converter(schema)
        self.arrow_schema: pa.Schema = pa.schema(self._row.fields)
        """The columns as Spark's ``mapInArrow`` wants them; timestamps are in UTC."""
        self.schema: spark.StructType = schema
        self._bare = bare
        self._single = bare is not False and len(schema.fields) == 1
        self._composite: tuple[type, ...] = (tuple, list, Mapping)
        if self._single and isinstance(schema.fields[0].dataType, spark.ArrayType):
            self._composite = (tuple, Mapping)
        if self._single and isinstance(schema.fields[0].dataType, spark.MapType):
            self._composite = (tuple, list)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return RowEncoder, self._arguments

    def is_of(self, declared: TypeInformation) -> bool:
        """Return whether the columns take the values of a type, no more and no less."""
        is_bare = not declared.names
        return self._bare is is_bare and declared.data_type is not None and self.schema == resolve_schema(declared)

    def encode(self, values: list[Any]) -> pa.RecordBatch:
        """Return the records as one batch, in their order.

        Raises:
            TypeMismatchError: a record or one of its values does not fit.
        """
        try:
            arrays = self._row.convert_columns(self._columns(values))
        except MISFITS as error:
            mismatch = self._explained(values, error)
            mismatch.at(operator=self._operator)
            raise mismatch from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

    def _columns(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        if self._single:
            bare = {kind: self._is_bare(kind) for kind in set(map(type, values))}
            if all(bare.values()):
                return [values]
            if any(bare.values()):
                values = [(value,) if bare[type(value)] else value for value in values]
        return self._row.columns(values)

    def _is_bare(self, kind: type) -> bool:
        return self._bare or not (issubclass(kind, self._composite) or dataclasses.is_dataclass(kind))

    def _explained(self, values: list[Any], cause: Exception) -> TypeMismatchError:
        """Return the error for the first value that does not fit."""
        lead = f"operator {self._operator!r}"
        for value in values:
            try:
                self._to_row((value,) if self._single and self._is_bare(type(value)) else value)
            except Misfit as misfit:
                whole = f": the record {shorten_record(value)} does not fit the declared columns"
                mismatch = TypeMismatchError(misfit.message(lead, whole, "other columns"))
                if misfit.path:
                    mismatch.at(record=value)
                return mismatch
        return TypeMismatchError(f"{lead}: {len(values)} records do not fit the declared columns: {cause}")
