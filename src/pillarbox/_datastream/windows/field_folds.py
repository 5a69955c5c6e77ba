"""sum, min, max, min_by and max_by of windows. Names and meaning are those of Flink's Java API, as PyFlink has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox._generics import T1, Generic
from pillarbox._operators.keyed.field_aggregation import Method

if TYPE_CHECKING:
    from pillarbox._datastream.streams.data_stream import DataStream

__all__ = ["FieldFolds"]


class FieldFolds(Generic[T1]):
    """The methods that fold the records of a window by one field: a window keeps one record, and emits it."""

    def sum(self, position_to_sum: int | str = 0) -> DataStream[T1]:
        """Add up a field of the records of each window; the other fields are those of its first record, as in Flink.

        Args:
            position_to_sum: the field to add up: a position, in tuples and rows, or a name, in rows, dictionaries and
                objects. Position 0 of a number is the number itself.

        Raises:
            ProgramError: it is neither a position nor a name, or there is no such column.

        Example:
            >>> amounts = env.from_collection([("a", 3), ("b", 5), ("a", 4)]).key_by(lambda pair: pair[0])
            >>> amounts.count_window(2).sum(1).execute_and_collect()
            [('a', 7)]
        """
        return self._fold_field("sum", position_to_sum)

    def min(self, position_to_min: int | str = 0) -> DataStream[T1]:
        """Keep the minimum of a field of the records of each window, in the window's first record.

        :meth:`min_by` keeps the whole record.

        Args:
            position_to_min: the field whose minimum is kept: see :meth:`sum`.

        Raises:
            ProgramError: it is neither a position nor a name, or there is no such column.

        Example:
            >>> trips = env.from_collection([("a", 3, "x"), ("a", 2, "y")]).key_by(lambda trip: trip[0])
            >>> trips.count_window(2).min(1).execute_and_collect()
            [('a', 2, 'x')]
        """
        return self._fold_field("min", position_to_min)

    def max(self, position_to_max: int | str = 0) -> DataStream[T1]:
        """Keep the maximum of a field of the records of each window, in the window's first record.

        :meth:`max_by` keeps the whole record.

        Args:
            position_to_max: the field whose maximum is kept: see :meth:`sum`.

        Raises:
            ProgramError: it is neither a position nor a name, or there is no such column.

        Example:
            >>> env.from_collection([3, 8, 5, 7]).count_window_all(2).max().execute_and_collect()
            [8, 7]
        """
        return self._fold_field("max", position_to_max)

    def min_by(self, position_to_min_by: int | str = 0) -> DataStream[T1]:
        """Keep the record of each window with the smallest field; of records with equal fields the earliest.

        Args:
            position_to_min_by: the field that is compared: see :meth:`sum`.

        Raises:
            ProgramError: it is neither a position nor a name, or there is no such column.

        Example:
            >>> trips = env.from_collection([("a", 3, "x"), ("a", 2, "y")]).key_by(lambda trip: trip[0])
            >>> trips.count_window(2).min_by(1).execute_and_collect()
            [('a', 2, 'y')]
        """
        return self._fold_field("min_by", position_to_min_by)

    def max_by(self, position_to_max_by: int | str = 0) -> DataStream[T1]:
        """Keep the record of each window with the largest field; of records with equal fields the earliest.

        Args:
            position_to_max_by: the field that is compared: see :meth:`sum`.

        Raises:
            ProgramError: it is neither a position nor a name, or there is no such column.

        Example:
            >>> words = env.from_collection([{"word": "to", "n": 2}, {"word": "be", "n": 1}])
            >>> words.count_window_all(2).max_by("n").execute_and_collect()
            [{'word': 'to', 'n': 2}]
        """
        return self._fold_field("max_by", position_to_max_by)

    def _fold_field(self, method: Method, field: int | str) -> DataStream[T1]:
        raise NotImplementedError
