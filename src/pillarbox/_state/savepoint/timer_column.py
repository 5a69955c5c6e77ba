"""Timers as a column: a list of service, domain and timestamp for each row. A slot of rows is one service's domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pillarbox._state.chunks.head import Layout
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP

TIMERS = pa.list_(pa.struct([("service", pa.string()), ("domain", pa.string()), ("timestamp", pa.int64())]))


def encode_timers(layout: Layout, rows: list[list[Any]], *, by_slot: bool = False) -> pa.Array:
    """Return the timers of rows: each slot of them holds None, a timestamp (epoch ms), or a set of such.

    Values that are no timestamps of 64 bits are left out: a restore drops them, too.

    Args:
        by_slot: whether the timers of a row are sorted by their slot before their time.
    """
    names: list[str] = []
    codes, owners, stamps = [], [], []
    for place, (name, kind) in enumerate(layout, 1):
        if kind == "timers":
            of, times = _flat([row[place] for row in rows])
            codes.append(np.full(len(of), len(names)))
            owners.append(of)
            stamps.append(times)
            names.append(name)
    if not any(map(len, owners)):
        return pa.nulls(len(rows), TIMERS)
    of, times, slots = np.concatenate(owners), np.concatenate(stamps), np.concatenate(codes)
    order = np.lexsort((times, slots, of) if by_slot else (times, of))
    chosen = pa.array(slots[order])
    texts = [name.rpartition("/")[::2] for name in names]
    arrays = [pa.array([text[part] for text in texts], pa.string()).take(chosen) for part in (0, 1)]
    structs = pa.StructArray.from_arrays([*arrays, pa.array(times[order])], fields=list(TIMERS.value_type))
    counts = np.bincount(of, minlength=len(rows))
    ends = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    nulls = np.append(counts == 0, False)
    return pa.ListArray.from_arrays(pa.array(ends, mask=nulls), structs).cast(TIMERS)


def _flat(column: list[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the number of the row of each timestamp, and the timestamps."""
    if set(map(type, column)) == {int}:
        try:
            return np.arange(len(column)), np.array(column, np.int64)
        except OverflowError:
            pass
    pairs = [
        (place, stamp)
        for place, slot in enumerate(column)
        if slot is not None
        for stamp in (slot if type(slot) is set else (slot,))
        if type(stamp) is int and MIN_TIMESTAMP <= stamp <= MAX_WATERMARK
    ]
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def decode_timers(column: pa.Array, slots: Sequence[str]) -> dict[str, list[Any]]:
    """Return what each of the slots holds in each row, where the column has any of its timers."""
    if column.null_count == len(column):
        return {}
    lengths = column.value_lengths().fill_null(0).to_numpy()
    owners = np.repeat(np.arange(len(column)), lengths)
    services, domains, stamps = column.flatten().flatten()
    service, domain = services.dictionary_encode(), domains.dictionary_encode()
    names = [f"{one}/{other}" for one in service.dictionary.to_pylist() for other in domain.dictionary.to_pylist()]
    codes = service.indices.to_numpy() * len(domain.dictionary) + domain.indices.to_numpy()
    times = stamps.to_numpy()
    found: dict[str, list[Any]] = {}
    for code, name in enumerate(names):
        mine = codes == code
        if not mine.any():
            continue
        if name not in slots:
            raise ValueError(f"it has timers of {name!r}, which the manifest does not name")
        of, at = owners[mine], times[mine].tolist()
        if len(of) == len(column) and (np.diff(of) == 1).all():
            found[name] = at
            continue
        held: list[Any] = [None] * len(column)
        for place, stamp in zip(of.tolist(), at):
            present = held[place]
            if present is None:
                held[place] = stamp
            elif type(present) is set:
                present.add(stamp)
            elif present != stamp:
                held[place] = {present, stamp}
        found[name] = held
    return found
