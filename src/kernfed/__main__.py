"""``python -m kernfed``: the command line where the console script is not on the path."""

from kernfed.cli import main

if __name__ == "__main__":
    main()
