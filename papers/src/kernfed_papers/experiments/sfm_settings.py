"""The four data sets of SFM section 4 as federations: features, scaling, sites, batch size, and how rows are spread."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.data import Dataset, long_tailed, partition_by_groups, partition_dirichlet
from kernfed.federation import FoldingLearner
from kernfed_papers.baselines.pooled import Parts
from kernfed_papers.published import TABLES, published
from kernfed_papers.rows import load_groups, load_rows, missing_all, missing_data, slice_numbers, take_rows

#: SFM 4.3 spreads long-tailed images with this concentration.
_IMAGE_ALPHA = 0.5
OURS = "SFM (proposed)"


@dataclass(frozen=True)
class FeatureSource:
    """Features of a data set: the file, the encoder that made them, and whether the paper used that one."""

    dataset: str
    encoder: str
    as_published: bool


@dataclass(frozen=True)
class Setting:
    """A data set of SFM.

    level : what the columns vary: "alpha" of the label skew or "rho" of the long tail. grouped : whether every site has
    rows of one group only, a language.
    """

    name: str
    sources: tuple[FeatureSource, ...]
    scaling: str
    level: str
    levels: tuple[float, ...]
    n_sites: int
    batch_size: int
    grouped: bool = False

    @property
    def datasets(self) -> tuple[str, ...]:
        """Names of the files that can fill the columns."""
        return tuple(source.dataset for source in self.sources)

    @property
    def absent(self) -> str:
        """Why nothing can be run, or nothing."""
        return missing_all(self.datasets)

    @property
    def by_class(self) -> bool:
        """Whether every class should weigh the same in training because it does in testing."""
        return self.level == "rho"

    def column(self, level: float) -> str:
        """Heading of a column in the published tables."""
        return f"{self.level} = {level:g}"

    def learner(self, measure: str = "rms", batch_size: int | None = None) -> FoldingLearner:
        """One round of folding as in SFM 4.4, computed in float32."""
        size = batch_size or self.batch_size
        return FoldingLearner(measure=measure, batch_size=size, partition="order", dtype="float32", scale=None)

    def loaded(self, quick: bool, seed: int) -> Iterator["Loaded"]:
        """The features at hand, one encoder after the other; a slice of them for a quick run."""
        for source in self.sources:
            if missing_data(source.dataset):
                continue
            data = load_rows(source.dataset, self.scaling)
            groups = load_groups(source.dataset) if self.grouped else None
            if quick:
                train, test = slice_numbers(data, 1500, 300, seed)
                data, groups = take_rows(data, train, test), None if groups is None else groups[train]
            yield Loaded(self, source, data, groups, quick)


@dataclass(frozen=True, eq=False)
class Loaded:
    """A setting with features: rows to be spread over sites."""

    setting: Setting
    source: FeatureSource
    data: Dataset
    groups: npt.NDArray[Any] | None
    quick: bool

    @property
    def note(self) -> str:
        """What to say beside a published number."""
        encoders = f"the paper's features are of {self.setting.sources[0].encoder}, ours of {self.source.encoder}"
        return "" if self.source.as_published else encoders

    @property
    def name(self) -> str:
        """The data set, with the encoder where it is not the paper's."""
        return self.setting.name if self.source.as_published else f"{self.setting.name} ({self.source.encoder})"

    @property
    def levels(self) -> tuple[float, ...]:
        """Columns to run: one of them for a quick run."""
        return self.setting.levels[:1] if self.quick else self.setting.levels

    def spread(self, level: float, seed: int) -> tuple[Dataset, Parts]:
        """Rows of a column and the rows of each site among them (SFM 4.1, 4.3)."""
        sites = 10 if self.quick else self.setting.n_sites
        if self.setting.level == "rho":
            data = take_rows(self.data, long_tailed(self.data.y_train, level, seed))
            return data, partition_dirichlet(data.y_train, sites, _IMAGE_ALPHA, seed)
        if self.groups is None:
            return self.data, partition_dirichlet(self.data.y_train, sites, level, seed)
        each = max(1, sites // len(np.unique(self.groups)))
        return self.data, partition_by_groups(self.data.y_train, self.groups, each, level, seed)


def best_other(table: int, column: str) -> str:
    """The best of the other methods in a printed table, for a note."""
    rows = TABLES["SFM", table].rows
    values = {method: published("SFM", table, method, column) or 0.0 for method in rows if method != OURS}
    best = max(values, key=lambda method: values[method])
    return f"best other method in print: {best} {values[best]:g}"


NEWSGROUPS = Setting(
    "20Newsgroup",
    (FeatureSource("20ng_mxbai", "mxbai-embed-large", True), FeatureSource("20ng_minilm", "all-MiniLM-L6-v2", False)),
    "times10",
    "alpha",
    (5, 1, 0.1),
    100,
    100,
)


def _xglue(dataset: str, encoder: str) -> Setting:
    source = FeatureSource(dataset, encoder, True)
    return Setting("XGLUE-NC", (source,), "times10", "alpha", (5, 2, 0.5), 100, 100, grouped=True)


XGLUE = _xglue("xglue_nc_distiluse_paraphrase", "distiluse and paraphrase-multilingual")
XGLUE_DISTILUSE = _xglue("xglue_nc_distiluse", "distiluse-base-multilingual-cased-v2")
XGLUE_PARAPHRASE = _xglue("xglue_nc_paraphrase", "paraphrase-multilingual")
CIFAR10 = Setting(
    "CIFAR-10-LT",
    (
        FeatureSource("cifar10_resnet50", "ResNet-50", True),
        FeatureSource("cifar10_efflite0", "EfficientNet-Lite0", False),
    ),
    "tanh",
    "rho",
    (100, 50, 10),
    20,
    20,
)
CIFAR100 = Setting(
    "CIFAR-100-LT", (FeatureSource("cifar100_resnet50", "ResNet-50", True),), "tanh", "rho", (100, 50, 10), 20, 20
)
