"""Damaged files of a checkpoint, and what came of each."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Damage", "damage"]


@dataclass
class Damage:
    """A file that was cut, changed or emptied.

    Attributes:
        file: below the checkpoint.
        how: what was done to it.
        batch: the first batch that may be wrong because of it.
        noticed_at: the batch at which it led to an error, and was taken back; None: it did not.
        said: the error.
        wrong: how many rows of the batches between are wrong.
    """

    file: str
    how: str
    batch: int
    noticed_at: int | None = None
    said: str = ""
    wrong: int = 0
    before: dict[Path, bytes] = field(default_factory=dict)
    after: dict[Path, bytes | None] = field(default_factory=dict)

    def may_have_spoilt(self, batch: int) -> bool:
        """Tell whether rows of a batch may be wrong because of it."""
        return self.batch <= batch and (self.noticed_at is None or batch < self.noticed_at)

    def is_there(self) -> bool:
        """Tell whether the file is still as it was left."""
        return self.noticed_at is None and all(
            (path.read_bytes() if path.exists() else None) == content for path, content in self.after.items()
        )

    def is_in(self, checkpoint: Path) -> bool:
        """Tell whether it is a file of this checkpoint."""
        return all(checkpoint in path.parents for path in self.before)

    def take_back(self, batch: int, said: str) -> None:
        """It was noticed: put back what there was."""
        self.noticed_at, self.said = batch, said
        for path, content in self.before.items():
            path.write_bytes(content)

    def outcome(self) -> str:
        """Say what came of it."""
        return f"SILENT: {self.wrong} rows" if self.wrong else "noticed" if self.noticed_at is not None else "harmless"


def damage(checkpoint: Path, rng: random.Random, shift: int = 0) -> Damage | None:
    """Damage one of the newest files, which are those that are read; None where there is none of the kind.

    Args:
        shift: from the number of a batch in the checkpoint to that in the output.
    """
    kind = rng.choice(["offsets", "commits", "state", "state"])
    which, how, far, bit, count, without = (
        rng.randrange(4 if kind == "state" else 2),
        rng.choice(["cut", "flipped", "emptied"]),
        rng.random(),
        rng.randrange(8),
        rng.randint(1, 200),
        rng.random() < 0.5,
    )
    files = [
        path
        for path in (checkpoint / kind).rglob("*")
        if path.is_file() and not path.name.startswith(".") and not path.name.endswith(".crc") and path.stat().st_size
    ]
    if not files:
        return None
    files.sort(key=lambda path: (-path.stat().st_mtime_ns, path.name))
    path = files[min(which, len(files) - 1)]
    crc = path.with_name(f".{path.name}.crc")
    before = {file: file.read_bytes() for file in (path, crc) if file.exists()}
    data = bytearray(before[path])
    if how == "cut":
        count = min(len(data), count)
        del data[-count:]
        how = f"cut by {count} of {count + len(data)} bytes"
    elif how == "flipped":
        data[int(far * len(data))] ^= 1 << bit
        how = f"bit {bit} of byte {int(far * len(data))} flipped"
    else:
        data.clear()
    path.write_bytes(bytes(data))
    if crc in before and without:
        crc.unlink()  # other file systems have none
        how += ", no .crc"
    committed = [int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit()]
    batch = max(committed, default=-1) + 1
    if path.name.isdigit() and kind != "state":
        batch = min(batch, int(path.name))
    after = {file: file.read_bytes() if file.exists() else None for file in before}
    return Damage(str(path.relative_to(checkpoint)), how, batch + shift, before=before, after=after)
