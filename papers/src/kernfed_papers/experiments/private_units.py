"""What a guarantee per element means for a record: the table every release of noisy rows should carry."""

from kernfed.privacy import ElementLaplace, ElementStaircase
from kernfed_papers.experiment import Axes, Experiment, Row

BOUNDS, D, DELTA = (-1.0, 1.0), 2.0, 1e-5
WIDTHS = (384, 784, 1024)

#: Record epsilon by element epsilon, for WIDTHS; computed elsewhere by privacy loss distributions.
REFERENCE: dict[float, tuple[float, float, float]] = {
    0.1: (9.5, 14.9, 17.7),
    1.0: (206.0, 382.0, 484.0),
    3.0: (905.0, 1780.0, 2298.0),
    8.0: (2819.0, 5682.0, 7391.0),
}


def run(seed: int, quick: bool) -> list[Row]:  # noqa: ARG001  nothing is drawn
    """Record epsilon of Laplace rows beside the reference, and of staircase rows."""
    rows: list[Row] = []
    for epsilon, values in REFERENCE.items():
        if quick and epsilon > 1:
            continue
        for width, reference in zip(WIDTHS, values, strict=True):
            for name, mechanism in (("Laplace", ElementLaplace), ("staircase", ElementStaircase)):
                _, record = mechanism(epsilon, D, BOUNDS).guarantees(width, record_delta=DELTA)
                rows.append(
                    Row(
                        f"{name}, element epsilon {epsilon:g}, {width} columns",
                        reference if name == "Laplace" else None,
                        record.epsilon,
                        "record epsilon",
                        series=f"{name}, {width} columns",
                        x=epsilon,
                    )
                )
    return rows


EXPERIMENTS = (
    Experiment(
        id="element-to-record",
        title="element epsilon to record epsilon",
        source="this package, beside figures computed elsewhere by PLD",
        datasets=(),
        protocol=(
            "Noise on every element of a row protects a change of one element by d. A person is a whole row: what a "
            "row in the public box [-1, 1]^n pays at d = 2 and delta 1e-5, by composition of privacy loss "
            "distributions, rounded so that the true epsilon is never larger. The column 'published' holds the "
            "figures computed elsewhere for Laplace noise; there are none for the staircase, which at the same "
            "element epsilon adds less noise to large epsilons, and so protects a record less."
        ),
        run=run,
        axes=Axes("element epsilon", "record epsilon", log_x=True, log_y=True),
    ),
)
