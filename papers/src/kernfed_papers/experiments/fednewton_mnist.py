"""FedNewton Figures 3 (right) and 5 (right): MNIST, over more and fewer sites, and round by round."""

from collections.abc import Iterable

from kernfed.data import Dataset
from kernfed.federation import Federation
from kernfed_papers.experiment import Axes, Experiment, Row
from kernfed_papers.experiments.fednewton_curves import (
    CURVES,
    ITERATIVE,
    Values,
    curves_by_round,
    first_that_helps,
    newton_helps,
    points,
    round_points,
)
from kernfed_papers.experiments.fednewton_settings import (
    EVEN,
    FIRST_ORDER,
    READING,
    SETTINGS,
    learn,
    load_scaled,
    spread,
)
from kernfed_papers.rows import slice_rows

_SETTING = SETTINGS["mnist"]
_UNIT = "%"
_SITES = (60, 30, 24, 18, 14, 10, 6)


def _load(seed: int, quick: bool) -> tuple[Dataset, int]:
    """Rows, and how many features to make of them."""
    data = load_scaled("mnist")
    return (slice_rows(data, 600, 300, seed), 60) if quick else (data, 2000)


def _accuracies(
    data: Dataset, n_sites: int, alpha: float, curves: Iterable[tuple[str, str, int]], seed: int, n_components: int
) -> Values:
    """Accuracy in % of every curve in one trial."""
    scores: Values = {}
    with Federation.local(spread(data, n_sites, alpha, seed), seed=seed) as federation:
        for series, method, rounds in curves:
            model = learn(federation, _SETTING, method, rounds, n_components=n_components)
            scores[series] = [100 * model.score(data.x_test, data.y_test)]
    return scores


def run_sample_size(seed: int, quick: bool) -> list[Row]:
    """Figure 3, right: all rows over fewer sites with more rows each."""
    data, n_components = _load(seed, quick)
    rows: list[Row] = []
    helps: dict[int, bool] = {}
    exact: Values = {}
    for n_sites in (10, 4) if quick else _SITES:
        values = _accuracies(data, n_sites, EVEN, [c for c in CURVES if c[0] not in exact], seed, n_components) | exact
        exact = {"exact": values["exact"]}  # the same for every number of sites
        size = len(data.y_train) // n_sites
        helps[size] = newton_helps(values)
        rows += points(values, size, f"{size} rows per site", _UNIT)
    return [first_that_helps(helps, 4400), *rows]


def run_rounds(seed: int, quick: bool) -> list[Row]:
    """Figure 5, right: ten sites by Dirichlet distribution."""
    data, n_components = _load(seed, quick)
    curves = curves_by_round(ITERATIVE, (0, 1, 2) if quick else (0, 1, 2, 4, 8))
    return list(round_points(_accuracies(data, 10, _SETTING.alpha, curves, seed, n_components), _UNIT))


_TASK = (
    "MNIST, 60,000 rows, M = 2000 features, lambda = 1e-5; accuracy on the 10,000 test rows, one trial because of the "
    f"time it takes. {FIRST_ORDER} "
)

EXPERIMENTS = (
    Experiment(
        id="fednewton-figure-3-mnist",
        title="local sample size: MNIST",
        source="FedNewton Figure 3, right",
        datasets=("mnist",),
        protocol=(
            f"{_TASK}Rows are spread evenly over 60 to 6 sites: the text fixes |D| = 10,000 for both data sets, and "
            f"prints 4400 rows of a site as a threshold, of which there would be two. {READING}"
        ),
        run=run_sample_size,
        axes=Axes("rows per site", "accuracy, %", log_x=True),
    ),
    Experiment(
        id="fednewton-figure-5-mnist",
        title="round by round: MNIST",
        source="FedNewton Figure 5, right",
        datasets=("mnist",),
        protocol=(
            f"{_TASK}Ten sites, each class spread in proportions drawn from a Dirichlet distribution with parameter "
            f"0.5. Round 0 is DKRR, from which all methods start. {READING}"
        ),
        run=run_rounds,
        axes=Axes("rounds", "accuracy, %"),
    ),
)
