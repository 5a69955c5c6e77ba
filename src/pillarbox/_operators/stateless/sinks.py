"""A program's sinks."""

from __future__ import annotations

import sys
from typing import Any

from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._operators.frame.operator import OperatorContext, StreamOperator
from pillarbox._operators.frame.user_code import raise_at_record
from pillarbox._types.row_encoder import RowEncoder


class ColumnSinkOperator(StreamOperator):
    """Converts records to the typed columns of an output DataFrame."""

    def __init__(self, context: OperatorContext, encoder: RowEncoder) -> None:
        super().__init__(context)
        self.encoder = encoder

    def process_records(self, records: Records) -> None:
        if isinstance(records, ArrowRecords) and records.batch.schema.equals(self.encoder.arrow_schema):
            self.output.process_records(ArrowRecords(records.batch))
        elif len(records):
            self.output.process_records(ArrowRecords(self.encoder.encode(records.values)))


class PrintOperator(StreamOperator):
    """Prints each record to the standard output of the task's process."""

    def __init__(self, context: OperatorContext, identifier: str = "") -> None:
        super().__init__(context)
        self.identifier = identifier

    def process_records(self, records: Records) -> None:
        """Print records like Flink, as ``identifier:subtask> record``, without a number if there is one subtask."""
        parallelism = self.context.parallelism or self.context.job_parallelism
        subtask = str(self.context.subtask + 1) if parallelism > 1 else ""
        prefix = ":".join(part for part in (self.identifier, subtask) if part)
        lead = f"{prefix}> " if prefix else ""
        pending = iter(records.values)
        try:
            lines = [f"{lead}{value}\n" for value in pending]
        except BaseException as error:
            facts: dict[str, Any] = {"operator": self.name, "subtask": self.context.subtask}
            raise_at_record(error, f"operator {self.name!r}", records.values, pending, **facts)
        sys.stdout.write("".join(lines))
        sys.stdout.flush()
