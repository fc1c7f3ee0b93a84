"""Run the attacks and print what came of them: exit code 1 if anything went wrong."""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .files import attack_files
from .kills import attack_kills
from .liars import attack_liars
from .messages import attack_messages
from .outcome import Outcomes

#: Each with how many attacks of a kind there are on each target.
ATTACKS: dict[str, tuple[Callable[[Outcomes, Path, int, int], None], int]] = {
    "files": (attack_files, 60),
    "messages": (attack_messages, 400),
    "kills": (attack_kills, 8),
    "liars": (attack_liars, 2),
}
#: Bytes of memory that an attack may make a process take.
MEMORY = 6 * 2**30


def main(arguments: Sequence[str] | None = None) -> int:
    """Run attacks; the exit code says whether all was well."""
    options = _options(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    outcomes = Outcomes()
    started = time.perf_counter()
    for name in options.only or ATTACKS:
        attack, count = ATTACKS[name]
        print(f"attacking {name}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="kernfed-attack-") as folder:
            attack(outcomes, Path(folder), options.seed, max(1, round(count * options.share)))
    print(outcomes.table())
    for fault in outcomes.faults[:50]:
        print(f"WRONG: {fault}")
    print(f"{outcomes.wrong} wrong, seed {options.seed}, {time.perf_counter() - started:.0f} s")
    return 1 if outcomes.wrong else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m attacks", description=__doc__)
    parser.add_argument("only", nargs="*", help=f"some of {', '.join(ATTACKS)}; default all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the number of attacks; 0.05 takes seconds")
    options = parser.parse_args(arguments)
    if strange := set(options.only) - set(ATTACKS):
        parser.error(f"unknown attack {sorted(strange)[0]!r}, known are {', '.join(ATTACKS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
