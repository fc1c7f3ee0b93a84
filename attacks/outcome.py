"""What came of the attacks, counted by their kind and what they were aimed at."""

from collections import Counter
from dataclasses import dataclass, field

#: Refused by name; survived, with nothing that differs from what is right; unnoticed, other answers from a damaged file
#: of 0.1, which has no digest to notice it by; wrong, which nothing may be.
REFUSED, SURVIVED, UNNOTICED, WRONG = "refused", "survived", "unnoticed", "WRONG"
VERDICTS = (REFUSED, SURVIVED, UNNOTICED, WRONG)


@dataclass
class Outcomes:
    """Counts by (kind, target, verdict), and a sentence about everything that went wrong."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add(self, kind: str, target: str, verdict: str, told: str = "") -> None:
        """Count one attack; ``told`` says what happened where it went wrong."""
        self.counts[kind, target, verdict] += 1
        if verdict == WRONG:
            self.faults.append(f"{kind}, {target}: {told}")

    @property
    def wrong(self) -> int:
        """How many attacks went wrong."""
        return sum(count for (_, _, verdict), count in self.counts.items() if verdict == WRONG)

    def table(self) -> str:
        """A line for every kind and target, the sum of every kind, and the sum of all."""
        targets = list(dict.fromkeys((kind, target) for kind, target, _ in self.counts))
        lines = [("attack", "on", "tried", *VERDICTS)]
        for kind in dict.fromkeys(kind for kind, _ in targets):
            own = [target for known, target in targets if known == kind]
            lines += [self._line(kind, target, [(kind, target)]) for target in own]
            lines.append(self._line(kind, f"all {len(own)}", [(kind, target) for target in own]))
        lines.append(self._line("all", "", targets))
        widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if place < 2 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        )

    def _line(self, kind: str, target: str, counted: list[tuple[str, str]]) -> tuple[str, ...]:
        numbers = [sum(self.counts[*one, verdict] for one in counted) for verdict in VERDICTS]
        return (kind, target, f"{sum(numbers):,}", *(f"{number:,}" for number in numbers))
