"""Lists, runs or copies example programs, with ``python -m pillarbox.examples [NAME] [--copy DIR]``.

An example is a folder with a README, ``program.py`` and data. It only uses pillarbox's public names.
"""

from __future__ import annotations

import argparse
import os
import runpy
import shutil
import sys
from pathlib import Path

# Beside this module in a wheel, in `examples/shipped` in a checkout.
_FOLDERS = (Path(__file__).parent / "_examples", Path(__file__).parents[2] / "examples" / "shipped")


def examples() -> dict[str, Path]:
    """Return the examples' folders by name."""
    return {program.parent.name: program.parent for root in _FOLDERS for program in sorted(root.glob("*/program.py"))}


def copy(example: Path, target: Path) -> None:
    """Copy an example into a new folder.

    Modification times follow the order of the file names, because a file stream reads the oldest file first.
    """
    shutil.copytree(example, target, ignore=shutil.ignore_patterns("__pycache__"))
    for second, path in enumerate(sorted(path for path in target.rglob("*") if path.is_file())):
        os.utime(path, (1_700_000_000 + second,) * 2)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    folders = examples()
    titles = {name: (folder / "README.md").read_text().splitlines()[0].lstrip("# ") for name, folder in folders.items()}
    parser = argparse.ArgumentParser(
        prog="python -m pillarbox.examples",
        description="Lists the examples, runs one, or copies one into a folder.",
        epilog="examples:\n" + "\n".join(f"  {name:22}{title}" for name, title in titles.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", choices=folders, metavar="NAME", help="an example")
    parser.add_argument(
        "--copy", type=Path, metavar="DIR", help="copy the example to this new folder instead of running it"
    )
    options = parser.parse_args(arguments)
    if options.name is None:
        parser.print_help()
    elif options.copy is None:
        program = folders[options.name] / "program.py"
        sys.argv = [str(program)]
        sys.path.insert(0, str(program.parent))  # as for a script
        runpy.run_path(str(program), run_name="__main__")
    elif options.copy.exists():
        parser.error(f"{options.copy} already exists: pass a new folder")
    else:
        copy(folders[options.name], options.copy)
        print(f"{options.copy}: read {options.copy / 'README.md'}, then run python {options.copy / 'program.py'}")


if __name__ == "__main__":
    main()
