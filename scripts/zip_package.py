"""Makes ``build/pillarbox.zip``, which contains both packages, for ``spark-submit --py-files``.

Run it with ``make zip``. The same sources always give the same bytes.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

HOME = Path(__file__).parents[1]
PACKAGES = [HOME / "src" / name for name in ("pillarbox", "pillarbox_tools")]
OUT = HOME / "build" / "pillarbox.zip"
# The earliest time in a ZIP archive.
TIME = (1980, 1, 1, 0, 0, 0)


def write_zip(packages: Sequence[Path], out: Path) -> None:
    """Write packages into an archive from which Python can import them."""
    files = [
        (path.relative_to(package.parent).as_posix(), path)
        for package in packages
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    # Compressed bytes would depend on the version of zlib.
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, path in sorted(files):
            entry = zipfile.ZipInfo(name, TIME)
            entry.create_system = 3  # Unix, for the permissions below
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, path.read_bytes())


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    write_zip(PACKAGES, out)
    print(out.relative_to(HOME) if out.is_relative_to(HOME) else out)
