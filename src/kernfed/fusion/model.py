"""The model that machines and a head make together: one logit per class of both."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.abstain import Abstaining, Coverage, strangeness
from kernfed.base.answer import Answer
from kernfed.base.checks import FloatArray
from kernfed.base.labels import ClassIndex
from kernfed.base.model import Model, SiteSet
from kernfed.base.prior import Prior, check_prior, log_ratio
from kernfed.data.preparation import Preparation
from kernfed.errors import InputError, NotConnected
from kernfed.fusion.combination import fused_values, probabilities
from kernfed.fusion.parts import Connection, FusedParts, FusionChoice, FusionExplanation, Visit
from kernfed.kahm.left_out import even_if_unknown
from kernfed.kahm.members import project
from kernfed.kahm.model import FoldingModel, Member
from kernfed.kernels.head import Head
from kernfed.promise import Terms
from kernfed.ridge.model import RidgeModel

#: How the weight came about, by ``FusionChoice.how`` where it was not chosen by rows.
_HOW = {"default": "by default, no site let rows travel", "given": "given"}


@dataclass(frozen=True, eq=False, repr=False)
class FusionModel(Abstaining):
    """Machines of the sites and a ridge head of all rows, one logit per class of both.

    Where ``folding`` is None the head answers alone, as it does to regress; where ``ridge`` is None the machines do,
    because no site allowed sums. ``weight_`` is c and ``temperature_`` T of ``kernfed.fusion.combination``. ``prior``:
    shares of classes where the model is used, see ``kernfed.base.prior``. ``missing_``: sites that took no part;
    ``headless_``: sites that are not in the head, with reasons. ``conformal_``: what ``kernfed.conform`` counted on
    rows kept aside; it goes when rows or sites come or go.
    """

    folding: FoldingModel | None = field()
    ridge: RidgeModel | None = field()
    weight_: float = 1.0
    temperature_: float = 1.0
    choice_: FusionChoice = field(default_factory=FusionChoice)
    visit_: Visit = field(default_factory=Visit)
    prior: Prior = "training"
    missing_: Mapping[str, str] = field(default_factory=dict)
    headless_: Mapping[str, str] = field(default_factory=dict)
    exchanges_: int = 0
    fused: Connection | None = field(default=None, compare=False)
    conformal_: Coverage | None = None

    can_change = can_explain = can_leave_out_sites = True

    def __post_init__(self) -> None:
        if self.folding is None and self.ridge is None:
            raise InputError("a FusionModel needs machines or a head, got neither")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "fused": None}

    def __str__(self) -> str:
        size = f"{len(self.classes_)} classes" if self.is_classifier else "values"
        lines = [f"FusionModel of {size} from {self.n_features_in_} columns"]
        if self.folding is not None and self.ridge is not None:
            lines.append(f"weight {self.weight_:.3g} ({self._weighed_by()}), temperature {self.temperature_:.3g}")
        if self.ridge is None:
            lines.append("machines alone: no site allowed sums for a head")
        elif self.folding is None:
            lines.append("the head alone")
        if self.headless_:
            lines.append(f"not in the head: {', '.join(sorted(self.headless_)[:10])}")
        if self.visit_.when == "unsure" and self.visit_.travelled is not None:
            lines.append(
                f"the head answers alone from {self.visit_.threshold:.3g} on: {self.visit_.travelled:.0%} of queries "
                f"travel, {100 * (self.visit_.given_up or 0):.2f} points given up"
            )
        if self.exchanges_:
            lines.append(f"{self.exchanges_} exchanges")
        return "\n".join([*lines, *(f"  {line}" for part in self.parts().values() for line in str(part).splitlines())])

    __repr__ = __str__

    def _weighed_by(self) -> str:
        counted = f"{self.choice_.rows} left-out rows of {len(self.choice_.sites)} site(s)"
        return _HOW.get(self.choice_.how, counted)

    # Of its parts --------------------------------------------------------------------------------------------------

    def parts(self) -> Mapping[str, Model]:
        """Machines and head, as far as there are both."""
        both: dict[str, Model | None] = {"folding": self.folding, "ridge": self.ridge}
        return {name: part for name, part in both.items() if part is not None}

    @property
    def _first(self) -> FoldingModel | RidgeModel:
        """The machines, or the head where it answers alone."""
        return self.folding or self._head

    @property
    def _head(self) -> RidgeModel:
        assert self.ridge is not None
        return self.ridge

    @property
    def n_features_in_(self) -> int:
        """Number of columns of X."""
        return self._first.n_features_in_

    @property
    def feature_names_in_(self) -> tuple[str, ...]:
        """Names of the columns, where they have any."""
        return self._first.feature_names_in_

    @property
    def preparation(self) -> Preparation | None:
        """What becomes of raw columns, where the sites had a table of them."""
        return self._first.preparation

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """Labels (C,) of both parts, sorted; empty to regress."""
        known = [part.classes_ for part in self.parts().values()]
        return known[0] if len(known) == 1 else np.union1d(known[0], known[1])

    @property
    def sites(self) -> tuple[str, ...]:
        """Sites whose machines answer, sorted; none where the head answers alone."""
        return self._first.sites

    @property
    def members_(self) -> Mapping[str, Member]:
        """What every site with machines holds."""
        return self._first.members_

    @property
    def hold(self) -> str:
        """Where the machines are: "sites", or "machines" for a model that needs nobody."""
        return self._first.hold

    @property
    def connection(self) -> Any:
        """The sites behind the machines, None for a whole model."""
        return self._first.connection

    @property
    def privacy(self) -> Terms | None:
        """Under which terms everything in the model was released: one release for both parts."""
        return self._first.privacy

    def with_privacy(self, terms: Terms) -> "FusionModel":
        """The same model with both parts under these terms."""
        folding = self.folding and self.folding.with_privacy(terms)
        return replace(self, folding=folding, ridge=self.ridge and self.ridge.with_privacy(terms))

    @property
    def distance_unit(self) -> float:
        """Temperature of the machines at their sites, 1 where the head answers alone."""
        return self._first.distance_unit

    @property
    def mapped_features(self) -> int:
        """Number of features of the head."""
        return 0 if self.ridge is None else self.ridge.mapped_features

    def exposure(self) -> str | None:
        """What wrong sites can do to either part, in words; None if that is nothing."""
        return "; ".join(text for part in self.parts().values() if (text := part.exposure()) is not None) or None

    def settings(self) -> Mapping[str, Any]:
        """Weight and temperature, and the settings of each part under its name."""
        between = {"weight": self.weight_, "temperature": self.temperature_}
        return between | {name: part.settings() for name, part in self.parts().items()}

    def chosen_by(self) -> Mapping[str, str]:
        """What the parts chose, and how the weight between them came about."""
        chosen = {name: how for part in self.parts().values() for name, how in part.chosen_by().items()}
        return chosen if len(self.parts()) < 2 else {**chosen, "weight": self._weighed_by()}

    # Answers -------------------------------------------------------------------------------------------------------

    def answer(self, X: npt.ArrayLike, *, prior: Prior = None, **options: Any) -> Answer:
        """Labels, probabilities, scores and who came nearest; ``options`` as in ``FoldingModel.site_scores``."""
        if self.folding is None:
            return self._head.answer(X, prior=self._asked(prior))
        parts = self._score_parts(X, prior, explain=True, **options)
        scores, likely = self._combine(parts, prior)
        winners = scores.argmin(axis=1)
        site, batch = self._nearest(parts, winners)
        return Answer(
            self.classes_[winners],
            likely,
            scores,
            site,
            batch,
            scores[np.arange(len(winners)), winners],
            () if parts.by_site is None else parts.by_site.sites,
            {} if parts.by_site is None else parts.by_site.missing,
            None if self.ridge is None else parts.decided_by(winners),
            parts.scores.min(axis=1),
        )

    def scores(self, X: npt.ArrayLike, *, prior: Prior = None, **options: Any) -> FloatArray:
        """Scores (n, C) in the order of ``classes_``: SMALLER is better; negative logits times the temperature."""
        if self.folding is None:
            return self._head.scores(X)
        return self._combine(self._score_parts(X, prior, **options), prior)[0]

    def predict(
        self, X: npt.ArrayLike, *, prior: Prior = None, abstain: float | None = None, **options: Any
    ) -> npt.NDArray[Any]:
        """Labels, or values, (n,); ties go to the first class.

        With ``abstain`` labels are masked where the model does not know, see ``abstaining``.
        """
        if abstain is not None:
            return self.abstaining(X, abstain, prior, **options)
        if self.folding is None:
            return self._head.predict(X, prior=self._asked(prior))
        return np.asarray(self.classes_[self.scores(X, prior=prior, **options).argmin(axis=1)])

    def predict_proba(self, X: npt.ArrayLike, *, prior: Prior = None, **options: Any) -> FloatArray:
        """Probabilities (n, C), fitted to rows that neither part saw."""
        if self.folding is None:
            return self._head.predict_proba(X, prior=self._asked(prior))
        return self._combine(self._score_parts(X, prior, **options), prior)[1]

    def conforming(self, X: npt.ArrayLike, **options: Any) -> tuple[FloatArray, FloatArray | None]:
        """Probabilities (n, C) of both parts, whatever ``visit_`` is, and the strangeness (n,) by the machines."""
        prior = self.prior if self.conformal_ is None else self.conformal_.prior
        whole = replace(self, visit_=Visit(), prior=prior)
        if self.folding is None:
            return whole.predict_proba(X, **options), None
        parts = whole._score_parts(X, None, **options)
        return whole._combine(parts, None)[1], strangeness(parts.scores)

    def explain(self, X: npt.ArrayLike, *, prior: Prior = None, **options: Any) -> FusionExplanation:
        """Which part decided each query, and what each part would say alone."""
        if self.folding is None or self.ridge is None:
            raise InputError("only a model of machines and a head has two parts to compare; use answer")
        parts = self._score_parts(X, prior, explain=True, **options)
        winners = self._combine(parts, prior)[0].argmin(axis=1)
        head, machines = parts.winners()
        labels = self.classes_
        site, _ = self._nearest(parts, winners)
        return FusionExplanation(labels[winners], parts.decided_by(winners), labels[head], labels[machines], site)

    def probabilities_without(
        self, X: npt.ArrayLike, sets: Sequence[SiteSet], heads: Sequence[RidgeModel] = (), **options: Any
    ) -> FloatArray:
        """Probabilities (1 + V, n, C) from one scoring of the machines and one computation of the features.

        The temperature, the weight of the parts and the prior are those of the model.
        """
        if self.folding is None:
            return replace(self._head, prior=self.prior).probabilities_without(X, sets, heads)
        queries = self.folding.checked_rows(X)
        by_site = self.folding.site_scores(queries, **options)
        values = self._values_by(queries, heads)
        likely = []
        for number, left in enumerate([(), *sets]):
            head = number if 0 < number <= len(heads) else 0
            parts = FusedParts.of(values[head], self._placed_scores(self.folding.combined(by_site, left)))
            likely.append(even_if_unknown(self._combine(parts, None)[1]))
        return np.stack(likely)

    def to_onnx(self, path: str | os.PathLike[str], *, part: str | None = None) -> None:
        """Write the head as an ONNX file; ``part="head"`` where there are machines too, which stay behind.

        Labels and probabilities of the file are then those of ``part``, for the model's own prior, and no more those of
        ``predict``. Needs the extra ``[onnx]``.
        """
        if self.ridge is None:
            raise InputError("ONNX files are made of heads, and this model has machines alone")
        if self.folding is None:
            replace(self.ridge, prior=self._asked(None)).to_onnx(path)
            return
        if part != "head":
            raise InputError(
                f"ONNX files are made of heads, and this model has machines too: leave them out with part='head', "
                f"got {part!r}"
            )
        if len(self.ridge.classes_) != len(self.classes_):
            raise InputError("the head does not know all classes of this model; export model.ridge, which says its own")
        T, shift = self.ridge.temperature_ or self.temperature_, self._shift(None)
        offset = np.zeros(len(self.classes_)) if self.ridge.intercept_ is None else self.ridge.intercept_
        offset = offset if shift is None else offset + T * shift
        features = self.ridge.parameters.feature_map()
        head = Head(self.ridge.weights_, offset, features, self.folding.basis, self.classes_, T)
        head.to_onnx(path, self.feature_names_in_ if self.preparation is None else self.preparation.columns)

    # The two parts -------------------------------------------------------------------------------------------------

    def _score_parts(self, X: npt.ArrayLike, prior: Prior, *, explain: bool = False, **options: Any) -> FusedParts:
        """What each part says of queries; with ``visit_`` "unsure" only the doubtful ones go to the sites."""
        assert self.folding is not None
        queries = self.folding.checked_rows(X)
        parts = FusedParts.of(self.head_values(queries), np.full((len(queries), len(self.classes_)), np.inf))
        if self.ridge is not None and self.visit_.when == "unsure":
            sure = self._head_probabilities(parts.values, prior).max(axis=1, initial=0.0) >= self.visit_.threshold
            parts = replace(parts, travelled=~sure)
        if not parts.travelled.any():
            return parts
        by_site = self.folding.site_scores(queries[parts.travelled], explain=explain, **options)
        parts.scores[parts.travelled] = self._placed_scores(self.folding.combined(by_site))
        return replace(parts, by_site=by_site)

    def head_values(self, queries: FloatArray) -> FloatArray:
        """Values (n, C) of the head for checked rows (n, p); zeros without a head."""
        return self._values_by(queries, ())[0]

    def _values_by(self, queries: FloatArray, heads: Sequence[RidgeModel]) -> list[FloatArray]:
        """Values (n, C) of the head, and of each of ``heads`` on its features, for checked rows (n, p).

        A class that a head does not know is as unlikely as the least likely that it does.
        """
        labels = self.classes_
        if self.ridge is None:
            return [np.zeros((len(queries), len(labels)))]
        if self.folding is not None:
            queries = project(queries, self.folding.basis)
        plain = replace(self.ridge, preparation=None, feature_names_in_=())
        places = ClassIndex(labels).numbers(self.ridge.classes_)
        placed = []
        for known in plain.values_by([plain, *heads], queries):
            values = np.repeat(known.min(axis=1, keepdims=True), len(labels), axis=1)
            values[:, places] = known
            placed.append(values)
        return placed

    def _placed_scores(self, known: FloatArray) -> FloatArray:
        """Scores (n, C) in the classes of the model, infinite for those that the machines do not know."""
        assert self.folding is not None
        scores = np.full((len(known), len(self.classes_)), np.inf)
        scores[:, ClassIndex(self.classes_).numbers(self.folding.classes_)] = known
        return scores

    def _combine(self, parts: FusedParts, prior: Prior) -> tuple[FloatArray, FloatArray]:
        """Scores (n, C), SMALLER is better, and probabilities (n, C), both for the prior asked for."""
        if self.ridge is None:
            assert self.folding is not None
            fused, T = -parts.scores, self.folding.temperature_
        else:
            fused, T = fused_values(parts.values, parts.scores, self.weight_), self.temperature_
        shift = self._shift(prior)
        fused = fused if shift is None else fused + T * shift
        likely = probabilities(fused, T)
        if self.ridge is not None and not parts.travelled.all():
            stayed = ~parts.travelled
            likely[stayed] = self._head_probabilities(parts.values[stayed], prior)
            with np.errstate(divide="ignore"):
                fused[stayed] = T * np.log(likely[stayed])
        return -fused, likely

    def _head_probabilities(self, values: FloatArray, prior: Prior) -> FloatArray:
        """Probabilities (n, C) of the head's values alone, for the prior asked for."""
        shift, T = self._shift(prior), self._head.temperature_ or self.temperature_
        return probabilities(values if shift is None else values + T * shift, T)

    def _asked(self, prior: Prior) -> Prior:
        return self.prior if prior is None and self.is_classifier else prior

    def _shift(self, prior: Prior) -> FloatArray | None:
        """``log(pi' / pi)`` (C,) for the prior asked for; None where nothing moves."""
        asked = self.prior if prior is None else check_prior(prior, self.classes_)
        if self.ridge is None or len(self.ridge.classes_) != len(self.classes_):
            return log_ratio(asked, self.classes_, made=None, training=None)
        return self.ridge.shift(asked)

    def _nearest(
        self, parts: FusedParts, winners: npt.NDArray[np.intp]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.intp]]:
        """Site (n,) and batch (n,) that came nearest in the class that won; "" and -1 where nobody was asked."""
        site, batch = np.full(len(winners), "", dtype=object), np.full(len(winners), -1, dtype=np.intp)
        if parts.by_site is not None and self.folding is not None:
            known = self.folding.classes_
            asked = np.flatnonzero(parts.travelled)
            rows = np.flatnonzero(np.isin(self.classes_[winners[asked]], known))
            columns = ClassIndex(known).numbers(self.classes_[winners[asked[rows]]])
            site[asked[rows]], batch[asked[rows]], _ = parts.by_site.nearest(rows, columns)
        return site.astype(str), batch

    # Changes -------------------------------------------------------------------------------------------------------

    def forget(self, site: str, rows: Sequence[int] | None = None, *, rechoose: bool = False) -> "FusionModel":
        """A new model as if ``site``, or the rows with these ids, had never taken part, by the recorded choices.

        Unit, batches, regularisation and weight stay what they are; ``rechoose`` makes them anew.
        """
        return self._connected().forget(self, site, rows, rechoose=rechoose)

    def add_site(self, site: str, data: Any = None) -> "FusionModel":
        """A new model in which ``site`` takes part; ``data`` (X, y) where the site is made here."""
        return self._connected().add_site(self, site, data)

    def add_rows(
        self, site: str, X: npt.ArrayLike, y: npt.ArrayLike, ids: npt.ArrayLike | None = None
    ) -> "FusionModel":
        """A new model with further rows at ``site``."""
        return self._connected().add_rows(self, site, X, y, ids)

    def _connected(self) -> Connection:
        if self.fused is None:
            raise NotConnected("only the sites of this model can do this: use model.connect(federation) first")
        return self.fused
