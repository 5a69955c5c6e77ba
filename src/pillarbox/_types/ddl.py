"""Spark's DDL of columns, parsed without a JVM: for tests, and for programs that are built without a session.

With a session, Spark itself parses columns: its settings decide what TIMESTAMP means.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyspark.sql.types as spark

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[<>(),:]|[^\s`'\"<>(),:]+)")
_SIMPLE: dict[str, type[spark.DataType]] = {
    "BOOLEAN": spark.BooleanType,
    **dict.fromkeys(("TINYINT", "BYTE"), spark.ByteType),
    **dict.fromkeys(("SMALLINT", "SHORT"), spark.ShortType),
    **dict.fromkeys(("INT", "INTEGER"), spark.IntegerType),
    **dict.fromkeys(("BIGINT", "LONG"), spark.LongType),
    **dict.fromkeys(("FLOAT", "REAL"), spark.FloatType),
    "DOUBLE": spark.DoubleType,
    "DATE": spark.DateType,
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_LTZ"), spark.TimestampType),
    "TIMESTAMP_NTZ": spark.TimestampNTZType,
    "STRING": spark.StringType,
    "BINARY": spark.BinaryType,
    "VOID": spark.NullType,
    "VARIANT": spark.VariantType,
}
_SIZED = {**dict.fromkeys(("CHAR", "CHARACTER"), spark.CharType), "VARCHAR": spark.VarcharType}
_DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND")
_MONTHS = ("YEAR", "MONTH")


class DdlError(ValueError):
    """The text is no DDL that is known here."""


def columns_of(ddl: str) -> spark.StructType:
    """Return the columns of a DDL string, such as ``"card STRING NOT NULL, amounts ARRAY<INT>"``.

    Raises:
        DdlError: it cannot be parsed.
    """
    parser = _Parser(ddl)
    columns = parser.fields("")
    if not columns:
        raise DdlError("there is no column")
    return spark.StructType(columns)


class _Parser:
    """A recursive descent over the tokens of a DDL string."""

    def __init__(self, ddl: str) -> None:
        self._tokens: list[str] = []
        place = 0
        while ddl[place:].strip():
            match = _TOKEN.match(ddl, place)
            if match is None:
                raise DdlError(f"{ddl[place:]!r} is no DDL")
            self._tokens.append(match[1])
            place = match.end()
        self._tokens.append("")  # the end
        self._place = 0

    @property
    def _next(self) -> str:
        return self._tokens[self._place]

    def _take(self) -> str:
        token = self._next
        self._place += 1
        return token

    def _takes(self, *words: str) -> bool:
        """Take these tokens, if they come next."""
        end = self._place + len(words)
        if [token.upper() for token in self._tokens[self._place : end]] != list(words):
            return False
        self._place = end
        return True

    def _expect(self, token: str) -> None:
        if not self._takes(token):
            raise DdlError(f"{self._next!r} stands where {token!r} was expected")

    def fields(self, end: str) -> list[spark.StructField]:
        """Return the fields up to a token, which is taken."""
        found: list[spark.StructField] = []
        while self._next != end or found:
            found.append(self._field())
            if not self._takes(","):
                break
        if end or self._next:
            self._expect(end)
        return found

    def _field(self) -> spark.StructField:
        token = self._take()
        if not re.fullmatch(r"[A-Za-z0-9_]+|`.+`", token, re.DOTALL):
            raise DdlError(f"{token!r} is no name of a column")
        name = token[1:-1].replace("``", "`") if token[0] == "`" else token
        self._takes(":")
        data_type = self._type()
        nullable = not self._takes("NOT", "NULL")
        metadata = {"comment": _text(self._take())} if self._takes("COMMENT") else None
        return spark.StructField(name, data_type, nullable, metadata)

    def _type(self) -> spark.DataType:
        name = self._take().upper()
        nested: dict[str, Callable[[], spark.DataType]] = {
            "ARRAY": self._array,
            "MAP": self._map,
            "STRUCT": self._struct,
        }
        if name in nested:
            return nested[name]()
        if name == "INTERVAL":
            return self._interval()
        if name == "TIME":
            return spark.TimeType(*self._numbers(0, 1))
        if name in _DECIMALS:
            return spark.DecimalType(*self._numbers(0, 2))
        if name in _SIZED:
            return _SIZED[name](*self._numbers(1, 1))
        if name in _SIMPLE:
            return _SIMPLE[name]()
        raise DdlError(f"{name!r} is no type")

    def _array(self) -> spark.DataType:
        self._expect("<")
        element = self._type()
        self._expect(">")
        return spark.ArrayType(element, True)

    def _map(self) -> spark.DataType:
        self._expect("<")
        key = self._type()
        self._expect(",")
        value = self._type()
        self._expect(">")
        return spark.MapType(key, value, True)

    def _struct(self) -> spark.DataType:
        self._expect("<")
        return spark.StructType(self.fields(">"))

    def _interval(self) -> spark.DataType:
        first = self._next.upper()
        for units, kind in ((_UNITS, spark.DayTimeIntervalType), (_MONTHS, spark.YearMonthIntervalType)):
            if first in units:
                self._take()
                last = self._take().upper() if self._takes("TO") else first
                if last not in units:
                    break
                return kind(units.index(first), units.index(last))
        raise DdlError(f"INTERVAL {self._next} is no type")

    def _numbers(self, least: int, most: int) -> list[int]:
        """Return the numbers in brackets after a type; without brackets, none."""
        numbers: list[int] = []
        if self._takes("("):
            while not numbers or self._takes(","):
                token = self._take()
                if not token.isdigit():
                    raise DdlError(f"{token!r} is no number")
                numbers.append(int(token))
            self._expect(")")
        if not least <= len(numbers) <= most:
            raise DdlError(f"a type takes {least} to {most} numbers, and not {len(numbers)}")
        return numbers


def _text(token: str) -> str:
    if len(token) < 2 or token[0] not in "'\"":
        raise DdlError(f"{token!r} is no text in quotes")
    return re.sub(r"\\(.)", r"\1", token[1:-1])
