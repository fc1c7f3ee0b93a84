"""The methods of ``kernfed bench one-round``: pooled ones, peers in one round or many, and ours with all defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

import kernfed as kf
from kernfed.data import Dataset
from kernfed.federation import Federation
from kernfed_papers.arrays import FloatArray, IntArray
from kernfed_papers.baselines.anchors import Anchors
from kernfed_papers.baselines.fishermix import fishermix
from kernfed_papers.baselines.heads import SUM_PEERS
from kernfed_papers.baselines.peers import ROUNDS, averaged_answers, choose_deep, deep_answers, head_answers
from kernfed_papers.baselines.tuning import Choice, share_right
from kernfed_papers.one_round.sets import SPREADS, Spread, even_rows, raw_rows, site_parts

POOLED, PEER, OURS = "pooled", "peer", "ours"
Sites = Mapping[str, tuple[FloatArray, IntArray]]


@dataclass(frozen=True)
class Outcome:
    """Accuracy (%) of one method on the test rows, how it was set, and the bytes of its training where they travel."""

    label: str
    accuracy: float
    note: str = ""
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True)
class Setting:
    """A set with so many training rows, a seed, and how rows are spread; None where that changes nothing."""

    name: str
    rows: int
    seed: int = 0
    spread: Spread | None = None

    @property
    def raw(self) -> Dataset:
        """Rows as they are in the file."""
        return raw_rows(self.name, self.rows)

    @property
    def even(self) -> Dataset:
        """Rows in one unit."""
        return even_rows(self.name, self.rows)

    def sites(self, data: Dataset) -> Sites:
        """Rows and labels of each site; sums over sites are the same for every spread, so the first will do."""
        parts = site_parts(data, self.spread or SPREADS[0], self.seed)
        return {name: (data.x_train[part], data.y_train[part]) for name, part in parts.items()}

    def outcome(self, label: str, predicted: IntArray, note: str = "", up: int = 0, down: int = 0) -> Outcome:
        """Of labels (m,) of all test rows."""
        return Outcome(label, share_right(predicted, self.raw.y_test), note, up, down)


@dataclass(frozen=True)
class BenchMethod:
    """A method by the name that ``--methods`` knows, and the columns of the table it fills.

    spread : whether its result depends on how rows are spread. random : whether it depends on a seed otherwise; what
    depends on neither is run once. missing : why it cannot be run, or nothing.
    """

    name: str
    group: str
    columns: tuple[str, ...]
    run: Callable[[Setting], list[Outcome]]
    spread: bool = False
    random: bool = False
    missing: Callable[[], str] = field(default=lambda: "")


# Pooled -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _anchors(name: str, rows: int) -> Anchors:
    return Anchors(even_rows(name, rows))


def _neighbours(setting: Setting) -> list[Outcome]:
    return [setting.outcome("nearest neighbours", *_anchors(setting.name, setting.rows).neighbours())]


def _logistic(setting: Setting) -> list[Outcome]:
    plain, adjusted, note = _anchors(setting.name, setting.rows).logistic()
    return [
        setting.outcome("logistic regression", plain, note),
        setting.outcome("logit-adjusted", adjusted, f"logistic regression for classes as frequent; {note}"),
    ]


def _support_vectors(setting: Setting) -> list[Outcome]:
    return [setting.outcome("SVM", *_anchors(setting.name, setting.rows).support_vectors())]


def _forest(setting: Setting) -> list[Outcome]:
    return [setting.outcome("forest", *_anchors(setting.name, setting.rows).forest(setting.seed))]


def _boosting(setting: Setting) -> list[Outcome]:
    return [setting.outcome("boosting", *_anchors(setting.name, setting.rows).boosting())]


# Peers ------------------------------------------------------------------------------------------------------------


def _head(label: str) -> Callable[[Setting], list[Outcome]]:
    def run(setting: Setting) -> list[Outcome]:
        data = setting.even
        return [setting.outcome(label, *head_answers(SUM_PEERS[label], data, setting.sites(data)))]

    return run


def _fishermix(setting: Setting) -> list[Outcome]:
    data = setting.even
    return [setting.outcome("FisherMix", *head_answers(fishermix(setting.seed), data, setting.sites(data)))]


@lru_cache(maxsize=1)
def _deep_choice(name: str, rows: int) -> Choice:
    return choose_deep(even_rows(name, rows))


def _deep(setting: Setting) -> list[Outcome]:
    data, choice = setting.even, _deep_choice(setting.name, setting.rows)
    return [setting.outcome("DeepAFL", *deep_answers(data, setting.sites(data), choice, setting.seed))]


def _averaging(setting: Setting) -> list[Outcome]:
    data = setting.even
    return [
        setting.outcome(f"FedAvg {done.rounds}", done.predicted, done.note, done.bytes_up, done.bytes_down)
        for done in averaged_answers(data, setting.sites(data), setting.seed)
    ]


# Ours -------------------------------------------------------------------------------------------------------------


def _ours(name: str, label: str) -> Callable[[Setting], list[Outcome]]:
    def run(setting: Setting) -> list[Outcome]:
        data = setting.raw
        with Federation.local(setting.sites(data), seed=setting.seed) as federation:
            model = getattr(kf, name)().fit(federation)
            up, down = federation.traffic.bytes_up, federation.traffic.bytes_down
            predicted = model.predict(data.x_test)
        return [setting.outcome(label, np.asarray(predicted), _told(model), up, down)]

    return run


def _told(model: Any) -> str:
    """What a model chose by itself, as far as it says so when printed."""
    lines = (line.strip() for line in str(model).splitlines())
    told = [line for line in lines if line.startswith(("chosen", "weight"))]
    if hasattr(model, "regularization_"):
        told.append(f"regularization {model.regularization_:.3g}")
    return "; ".join(dict.fromkeys(told))


def _absent(name: str) -> Callable[[], str]:
    return lambda: "" if hasattr(kf, name) else f"this version of kernfed has no {name}"


METHODS = {
    method.name: method
    for method in (
        BenchMethod("neighbours", POOLED, ("nearest neighbours",), _neighbours),
        BenchMethod("logistic", POOLED, ("logistic regression", "logit-adjusted"), _logistic),
        BenchMethod("svm", POOLED, ("SVM",), _support_vectors),
        BenchMethod("forest", POOLED, ("forest",), _forest, random=True),
        BenchMethod("boosting", POOLED, ("boosting",), _boosting),
        *(BenchMethod(label.lower(), PEER, (label,), _head(label)) for label in SUM_PEERS),
        BenchMethod("fishermix", PEER, ("FisherMix",), _fishermix, random=True),
        BenchMethod("deepafl", PEER, ("DeepAFL",), _deep, random=True),
        BenchMethod(
            "fedavg", PEER, tuple(f"FedAvg {rounds}" for rounds in ROUNDS), _averaging, spread=True, random=True
        ),
        *(
            BenchMethod(
                label,
                OURS,
                (label,),
                _ours(learner, label),
                spread=True,
                random=True,
                missing=_absent(learner),
            )
            for label, learner in (
                ("folding", "FoldingLearner"),
                ("ridge", "RidgeLearner"),
                ("fusion", "FusionLearner"),
            )
        ),
    )
}
