"""SFM Tables 1 to 4: one round of folding under label skew and long tails, beside baselines on the same features."""

from functools import partial

from kernfed import KAHMClassifier
from kernfed_papers.baselines.pooled import (
    ROUNDS,
    averaging_answers,
    baseline_rows,
    mean_row,
    pooled_answers,
    repetition_seeds,
    ridge_answers,
    run_folding,
    site_rows,
)
from kernfed_papers.baselines.pooled import accuracy as percent
from kernfed_papers.experiment import Axes, Experiment, Row, not_run
from kernfed_papers.experiments.sfm_settings import (
    CIFAR10,
    CIFAR100,
    NEWSGROUPS,
    OURS,
    XGLUE,
    Loaded,
    Setting,
    best_other,
)
from kernfed_papers.published import published

_REPETITIONS = 3


def run(setting: Setting, table: int, seed: int, quick: bool) -> list[Row]:
    """Rows of every column of ``table``; a quick run takes a slice, one column, one repetition and few rounds."""
    columns = {level: published("SFM", table, OURS, setting.column(level)) for level in setting.levels}
    if setting.absent:
        return [
            not_run(f"{setting.name}, {setting.column(level)}: SFM", value, "%", setting.absent)
            for level, value in columns.items()
        ]
    rows: list[Row] = []
    for loaded in setting.loaded(quick, seed):
        pooled = [] if setting.by_class else _pooled_rows(loaded.name, loaded, seed)
        for level in loaded.levels:
            rows += _run_column(loaded, table, level, columns[level], seed)
        rows += pooled
    return rows


def _run_column(loaded: Loaded, table: int, level: float, printed: float | None, seed: int) -> list[Row]:
    """One column: repetitions of folding, then the baselines on the first of them."""
    setting, column = loaded.setting, loaded.setting.column(level)
    name = f"{loaded.name}, {column}"
    together, alone, traffic = [], [], []
    for number, run_seed in enumerate(repetition_seeds(seed, 1 if loaded.quick else _REPETITIONS)):
        data, parts = loaded.spread(level, run_seed)
        folding = run_folding(setting.learner(), data, site_rows(data, parts), run_seed)
        together.append(percent(folding.predicted, data.y_test))
        alone.append(folding.alone(data.y_test))
        if number == 0 and level == loaded.levels[-1]:
            traffic = folding.traffic(f"{name}: SFM")
    note = "; ".join(filter(None, (loaded.note, best_other(table, column))))
    rows = [
        mean_row(f"{name}: SFM", printed, together, note, series=f"SFM, {column}", x=1),
        mean_row(f"{name}: each site alone", None, alone, "mean over sites, all classes asked"),
    ]
    return rows + _baselines(loaded, name, level, seed) + traffic


def _baselines(loaded: Loaded, name: str, level: float, seed: int) -> list[Row]:
    first = repetition_seeds(seed, 1 if loaded.quick else _REPETITIONS)[0]
    data, parts = loaded.spread(level, first)
    sites, by_class = site_rows(data, parts), loaded.setting.by_class
    answers = [ridge_answers(data, sites, first, balanced=by_class)]
    answers += averaging_answers(data, sites, first, "linear", (1, 3) if loaded.quick else ROUNDS)
    rows = baseline_rows(name, answers, data.y_test, series=loaded.setting.column(level))
    if by_class:
        rows += _pooled_rows(name, loaded, first, level)
    return rows


def _pooled_rows(name: str, loaded: Loaded, seed: int, level: float | None = None) -> list[Row]:
    """Classifiers on pooled rows: of one column where the tail is cut, of all otherwise."""
    data = loaded.data if level is None else loaded.spread(level, seed)[0]
    setting = loaded.setting
    machines = KAHMClassifier(
        "rms", batch_size=setting.batch_size, partition="order", dtype="float32", random_state=seed, scale=None
    )
    return baseline_rows(name, pooled_answers(data, seed, machines=machines, balanced=setting.by_class), data.y_test)


def _experiment(setting: Setting, table: int, words: str) -> Experiment:
    return Experiment(
        id=f"sfm-table-{table}",
        title=f"{setting.name}: one round of folding under skew, beside baselines on the same features",
        source=f"SFM Table {table}",
        datasets=setting.datasets,
        protocol=(
            f"{words} Machines of about {setting.batch_size} rows in order, measure option 1 (rms), computed in "
            f"float32. SFM: mean of {_REPETITIONS} spreads (the paper does not say how many it ran). Baselines on the "
            "first spread and the same features: ridge regression exact in one exchange (a constant column is the "
            "intercept), FedAvg of a softmax (one local epoch, standardised features, the best of three learning rates "
            "on pooled training rows), and on pooled rows KAHM, nearest neighbours and logistic regression, which "
            "choose their one setting on training rows set aside. Bytes of folding are those of the last column."
        ),
        run=partial(run, setting, table),
        axes=Axes("rounds", "accuracy (%)", log_x=True),
    )


_TEXT = "Embeddings times 10 over 100 sites by Dirichlet label skew alpha"
_IMAGES = (
    "Tanh of image features; class sizes fall exponentially by the factor rho, then rows go to 20 sites by Dirichlet "
    "label skew 0.5. The test rows have all classes alike: ridge weighs classes the same, and logistic regression, "
    "fitted to all rows alike, takes the logarithm of each class's share off its logit (arXiv 2007.07314). Grids go on "
    "where the best setting is at an end."
)
EXPERIMENTS = (
    _experiment(NEWSGROUPS, 1, f"{_TEXT}. The paper's encoder is mxbai-embed-large (1024 columns)."),
    _experiment(CIFAR10, 2, _IMAGES),
    _experiment(XGLUE, 3, f"{_TEXT}, 20 sites for each language (array group_train of the file)."),
    _experiment(CIFAR100, 4, _IMAGES),
)
