"""``python -m pillarbox.cli``: the same as ``pillarbox``."""

from pillarbox.cli import main

if __name__ == "__main__":
    main()
