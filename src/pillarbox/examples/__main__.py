"""``python -m pillarbox.examples [NAME] [--copy DIR]``: lists the examples, runs one, or copies one."""

from __future__ import annotations

import argparse
import os
import runpy
import shutil
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent / "_programs"


def examples() -> dict[str, Path]:
    """Return the folder of each example, by its name."""
    return {program.parent.name: program.parent for program in sorted(PROGRAMS.glob("*/program.py"))}


def copy(example: Path, target: Path) -> None:
    """Copy an example into a new folder, where its program imports the modules next to it.

    Its files get times of modification in the order of their names: a stream reads files in the order of those.
    """
    shutil.copytree(example, target, ignore=shutil.ignore_patterns("__pycache__"))
    program = target / "program.py"
    program.write_text(program.read_text().replace(f"from pillarbox.examples._programs.{example.name}.", "from "))
    for second, path in enumerate(sorted(path for path in target.rglob("*") if path.is_file())):
        os.utime(path, (1_700_000_000 + second,) * 2)


def main(arguments: list[str] | None = None) -> None:
    """Do what the command line says."""
    known = examples()
    titles = {name: (folder / "README.md").read_text().splitlines()[0].lstrip("# ") for name, folder in known.items()}
    parser = argparse.ArgumentParser(
        prog="python -m pillarbox.examples",
        description="Lists the examples, runs one, or copies one into a folder.",
        epilog="examples:\n" + "\n".join(f"  {name:22}{title}" for name, title in titles.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", choices=known, metavar="NAME", help="an example")
    parser.add_argument("--copy", type=Path, metavar="DIR", help="copy it to this new folder instead of running it")
    asked = parser.parse_args(arguments)
    if asked.name is None:
        parser.print_help()
    elif asked.copy is None:
        sys.argv = [str(known[asked.name] / "program.py")]
        runpy.run_path(sys.argv[0], run_name="__main__")
    elif asked.copy.exists():
        parser.error(f"{asked.copy} exists: pass a new folder")
    else:
        copy(known[asked.name], asked.copy)
        print(f"{asked.copy}: read {asked.copy / 'README.md'}, then run python {asked.copy / 'program.py'}")


if __name__ == "__main__":
    main()
