"""SFM Tables 7 to 10: which measure, how large a batch, which encoder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from kernfed.federation import FoldingLearner
from kernfed_papers.baselines.pooled import accuracy, run_folding, site_rows
from kernfed_papers.experiment import Axes, Experiment, Row, not_run
from kernfed_papers.experiments.sfm_settings import (
    CIFAR10,
    CIFAR100,
    NEWSGROUPS,
    XGLUE,
    XGLUE_DISTILUSE,
    XGLUE_PARAPHRASE,
    Setting,
)
from kernfed_papers.published import published

#: Learners by the row of the table they fill.
Variants = Mapping[str, Callable[[Setting], FoldingLearner]]

_OPTIONS = {"SFM-1": "rms", "SFM-2": "product", "SFM-3": "min", "SFM-4": "max"}
MEASURES: Variants = {row: partial(Setting.learner, measure=measure) for row, measure in _OPTIONS.items()}
BATCHES: Variants = {f"N_b = {size}": partial(Setting.learner, batch_size=size) for size in (20, 50, 100)}


@dataclass(frozen=True)
class _Study:
    """Rows of a table: a setting, its variants, and the table that prints them, if one does."""

    setting: Setting
    variants: Variants
    table: int | None = None


def run(studies: tuple[_Study, ...], seed: int, quick: bool) -> list[Row]:
    """Rows of all studies; a quick run takes a slice and one column."""
    return [row for study in studies for row in _run_study(study, seed, quick)]


def _run_study(study: _Study, seed: int, quick: bool) -> list[Row]:
    setting = study.setting
    printed = {
        (row, level): None if study.table is None else published("SFM", study.table, row, setting.column(level))
        for row in study.variants
        for level in setting.levels
    }
    if setting.absent:
        return [
            not_run(f"{setting.name}, {setting.column(level)}: {row}", value, "%", setting.absent)
            for (row, level), value in printed.items()
        ]
    rows = []
    for loaded in setting.loaded(quick, seed):
        for level in loaded.levels:
            data, parts = loaded.spread(level, seed)
            sites = site_rows(data, parts)
            for row, learner in study.variants.items():
                folding = run_folding(learner(setting), data, sites, seed)
                rows.append(
                    Row(
                        f"{loaded.name}, {setting.column(level)}: {row}",
                        printed[row, level],
                        accuracy(folding.predicted, data.y_test),
                        "%",
                        loaded.note,
                        series=f"{loaded.name}: {row}",
                        x=level,
                    )
                )
    return rows


def _experiment(table: int, title: str, words: str, studies: tuple[_Study, ...], axis: str) -> Experiment:
    return Experiment(
        id=f"sfm-table-{table}",
        title=title,
        source=f"SFM Table {table}",
        datasets=tuple(dict.fromkeys(name for study in studies for name in study.setting.datasets)),
        protocol=(
            f"Settings as in SFM Tables 1 to 4, without their baselines. {words} A seed is one spread, the "
            "same for every row. Computed in float32."
        ),
        run=partial(run, studies),
        axes=Axes(axis, "accuracy (%)", log_x=True),
    )


_TAIL, _SKEW = "rho of the long tail", "alpha of the label skew"
EXPERIMENTS = (
    _experiment(
        7,
        "the four space folding measures, long-tailed images",
        "The paper uses CIFAR-100-LT, which is not at hand; CIFAR-10-LT stands in, with nothing published to compare.",
        (_Study(CIFAR100, MEASURES, 7), _Study(CIFAR10, MEASURES)),
        _TAIL,
    ),
    _experiment(
        8,
        "the four space folding measures, text",
        "The paper uses XGLUE-NC, which is not at hand; 20Newsgroup stands in, with nothing published to compare.",
        (_Study(XGLUE, MEASURES, 8), _Study(NEWSGROUPS, MEASURES)),
        _SKEW,
    ),
    _experiment(
        9,
        "batch sizes, long-tailed images",
        "The paper uses CIFAR-100-LT, which is not at hand; CIFAR-10-LT stands in, with nothing published to compare.",
        (_Study(CIFAR100, BATCHES, 9), _Study(CIFAR10, BATCHES)),
        _TAIL,
    ),
    _experiment(
        10,
        "encoders of text",
        "The paper compares two multilingual encoders and both together on XGLUE-NC, none of which is at hand; "
        "20Newsgroup by a third encoder stands in, with nothing published to compare.",
        (
            _Study(XGLUE_DISTILUSE, {"distiluse-base-multilingual-cased-v2": Setting.learner}, 10),
            _Study(XGLUE_PARAPHRASE, {"paraphrase-multilingual": Setting.learner}, 10),
            _Study(XGLUE, {"both": Setting.learner}, 10),
            _Study(NEWSGROUPS, {"SFM": Setting.learner}),
        ),
        _SKEW,
    ),
)
