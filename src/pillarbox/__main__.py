"""``python -m pillarbox``: the same as the command ``pillarbox``."""

from pillarbox._cli import main

if __name__ == "__main__":
    main()
