"""Damage to checkpoint files, and the effects of this damage."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Damage", "damage"]


@dataclass
class Damage:
    """A checkpoint file that a fault has truncated, changed or emptied.

    Attributes:
        file: its path in the checkpoint.
        batch: the first batch that the damage may affect.
        noticed_at: the batch when the damage caused an error and was reverted, or None.
        wrong: number of wrong rows from ``batch`` to ``noticed_at``.
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
        return self.batch <= batch and (self.noticed_at is None or batch < self.noticed_at)

    def is_there(self) -> bool:
        return self.noticed_at is None and all(
            (path.read_bytes() if path.exists() else None) == content for path, content in self.after.items()
        )

    def is_in(self, checkpoint: Path) -> bool:
        return all(checkpoint in path.parents for path in self.before)

    def take_back(self, batch: int, error: str) -> None:
        self.noticed_at, self.said = batch, error
        for path, content in self.before.items():
            path.write_bytes(content)

    def outcome(self) -> str:
        return f"SILENT: {self.wrong} rows" if self.wrong else "noticed" if self.noticed_at is not None else "harmless"


def damage(checkpoint: Path, rng: random.Random, shift: int = 0) -> Damage | None:
    """Damage one of a checkpoint's newest files, which the next start reads. Returns None without a suitable file.

    Args:
        shift: a batch's number in the output minus its number in the checkpoint.
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
        crc.unlink()  # only local file systems have it
        how += ", no .crc"
    committed = [int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit()]
    batch = max(committed, default=-1) + 1
    if path.name.isdigit() and kind != "state":
        batch = min(batch, int(path.name))
    after = {file: file.read_bytes() if file.exists() else None for file in before}
    return Damage(str(path.relative_to(checkpoint)), how, batch + shift, before=before, after=after)
