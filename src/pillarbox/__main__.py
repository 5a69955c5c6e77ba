"""The command ``pillarbox``, and ``python -m pillarbox``."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from pillarbox_tools.cli import main as command_line
    except ModuleNotFoundError as error:
        if error.name != "pillarbox_tools":
            raise
        sys.exit(
            "pillarbox: the command line needs the package pillarbox_tools, which is not installed: run pip install"
            " --force-reinstall pillarbox"
        )
    command_line()


if __name__ == "__main__":
    main()
