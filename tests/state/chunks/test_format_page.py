"""A decoder written from docs/checkpoint-format.md alone can read a log."""

from __future__ import annotations

import pickle
import zlib
from itertools import accumulate
from typing import Any

import pytest

from pillarbox._unpickle import loads
from tests.data.make_checkpoint import load
from tests.state.inspect.test_view import GOLDEN, restored


def numbers(width: int, steps: bytes) -> list[int]:
    return [*accumulate(int.from_bytes(steps[at : at + width], "little") for at in range(0, len(steps), width))]


def proven(payload: bytes | None, size: int, digest: int, epoch: int) -> Any:
    assert payload is not None and (len(payload), zlib.crc32(payload)) == (size, digest)
    return loads(payload)


def layout_of(layouts: list[Any], number: int) -> list[Any]:
    return next(slots for first, slots in reversed(layouts) if first <= number)


def decode(values: dict[int, bytes]) -> dict[Any, dict[str, Any]]:
    head = values[0]
    assert head[:11] == b"pillarbox\x02\x00" and int.from_bytes(head[11:15], "little") == zlib.crc32(head[15:])
    fields = pickle.loads(head[15:])
    assert fields["following"] not in values

    mark, next_entry, gone = fields["newest"], fields["entry"], set()
    rows: dict[Any, dict[str, Any]] = {}
    apart: dict[Any, int] = {}
    elements: dict[Any, list[Any]] = {}
    for number in range(fields["following"] - 1, fields["first"] - 1, -1):
        chunk = proven(values.get(number), *mark)
        assert chunk["epoch"] == mark[2]
        mark = chunk.get("before")
        layout = layout_of(fields["layouts"], number)
        entries: list[Any] = [((key,), row, layout) for key, row in zip(chunk["keys"], chunk["rows"])]
        if "spaces" in chunk:
            space_layout = layout_of(fields["space_layouts"], number)
            entries += [((key, space), row, space_layout) for key, space, row in zip(*chunk["spaces"])]
        groups = chunk.get("elements", ())
        count = len(entries) + sum(len(group[4]) for group in groups)
        first = next_entry - count
        next_entry = first
        large = chunk.get("large", {})
        for index, (address, row, slots) in enumerate(entries):
            if first + index in gone:
                continue
            written = slots
            if index in large:
                at, *proof = large[index]
                content = proven(values.get(at), *proof)
                contents, written = content["row"], content["slots"]
            else:
                assert row[0] == first + index
                contents = row
            assert len(contents) == 1 + len(written) and address not in rows
            rows[address] = {name: value for (name, _), value in zip(written, contents[1:]) if value is not None}
            for slot, size in chunk.get("apart", {}).get(index, {}).items():
                apart[address, slots[slot - 1][0]] = size
        index = len(entries)
        for address, slot, (start, width, steps), keys, content in groups:
            slots = layout if len(address) == 1 else layout_of(fields["space_layouts"], number)
            name, kind = slots[slot - 1]
            assert (kind == "list") == (keys is None)
            ordinals = [start + step for step in ([0, *numbers(width, steps)] if width else range(len(content)))]
            for ordinal, key, value in zip(ordinals, keys or [None] * len(content), content):
                if first + index not in gone:
                    if index in large:
                        at, *proof = large[index]
                        result = proven(values.get(at), *proof)["element"]
                    else:
                        result = value
                    elements.setdefault((address, name), []).append((ordinal, key, result, kind))
                index += 1
        if "replaced" in chunk:
            gone |= {first - distance for distance in numbers(*chunk["replaced"])}
    assert next_entry == fields["entry"] - fields["entries"]
    assert {whose: len(result) for whose, result in elements.items()} == apart
    for (address, name), parts in elements.items():
        parts.sort(key=lambda part: part[0])
        is_list = parts[0][3] == "list"
        rows[address][name] = [part[2] for part in parts] if is_list else {key: value for _, key, value, _ in parts}
    return {address[0] if len(address) == 1 else (*address, "space"): result for address, result in rows.items()}


@pytest.mark.parametrize("path", [path for path in GOLDEN if "format-1" not in path.stem], ids=lambda path: path.stem)
def test_the_page_suffices(path):
    for store in load(path).values():
        assert decode(store.chunks) == restored(store)
