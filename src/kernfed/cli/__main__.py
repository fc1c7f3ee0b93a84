"""``python -m kernfed.cli``: the command line where the console script is not on the path."""

from kernfed.cli import main

main()
