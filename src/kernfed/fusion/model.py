"""The model that machines and a head make together."""

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
from kernfed.base.prior import Prior, check_prior, log_ratio, weighted_shares
from kernfed.data.preparation import Preparation
from kernfed.errors import InputError, NotConnected
from kernfed.files import Savable
from kernfed.fusion.combination import fused_values, probabilities
from kernfed.fusion.connection import Connection
from kernfed.fusion.parts import FusedParts, FusionChoice, FusionExplanation, Visit
from kernfed.kahm.model import FoldingModel, Member
from kernfed.kahm.projection import project
from kernfed.kernels.head import Head
from kernfed.promise import Terms
from kernfed.ridge.model import RidgeModel


@dataclass(frozen=True, eq=False, repr=False)
class FusionModel(Savable, Abstaining):
    """Machines of the sites and a ridge head of all rows, one logit per class of both.

    Where ``folding`` is None the head answers alone, as it does to regress; where ``ridge`` is None the machines do,
    because no site allowed sums. ``weight_`` is c and ``temperature_`` T of ``kernfed.fusion.combination``. ``prior``:
    shares of classes where the model is used, see ``kernfed.base.prior``. ``missing_``: sites that took no part;
    ``headless_``: sites that are not in the head, with reasons. ``conformal_``: what ``kernfed.conform`` counted on
    rows kept aside; it goes when rows or sites come or go.
    """

    folding: FoldingModel | None
    ridge: RidgeModel | None
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

    def __post_init__(self) -> None:
        if self.folding is None and self.ridge is None:
            raise InputError("a FusionModel needs machines or a head, got neither")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "fused": None}

    def __str__(self) -> str:
        size = f"{len(self.classes_)} classes" if len(self.classes_) else "values"
        lines = [f"FusionModel of {size} from {self.n_features_in_} columns"]
        if self.folding is not None and self.ridge is not None:
            told = f"{self.choice_.rows} left-out rows of {len(self.choice_.sites)} site(s)"
            how = {"rows": told, "default": "by default, no site let rows travel", "given": "given"}[self.choice_.how]
            lines.append(f"weight {self.weight_:.3g} ({how}), temperature {self.temperature_:.3g}")
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
        parts = [str(part) for part in (self.folding, self.ridge) if part is not None]
        return "\n".join([*lines, *(f"  {line}" for part in parts for line in part.splitlines())])

    __repr__ = __str__

    # What models have in common ------------------------------------------------------------------------------------

    @property
    def _any(self) -> Any:
        return self.folding if self.folding is not None else self.ridge

    @property
    def n_features_in_(self) -> int:
        """Columns of X."""
        return int(self._any.n_features_in_)

    @property
    def feature_names_in_(self) -> tuple[str, ...]:
        """Names of the columns, where they have any."""
        names: tuple[str, ...] = self._any.feature_names_in_
        return names

    @property
    def preparation(self) -> Preparation | None:
        """What becomes of raw columns, where the sites had a table of them."""
        own: Preparation | None = self._any.preparation
        return own

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """Labels (C,) of both parts, sorted; empty to regress."""
        known = [part.classes_ for part in (self.folding, self.ridge) if part is not None]
        return known[0] if len(known) == 1 else np.union1d(known[0], known[1])

    @property
    def sites(self) -> tuple[str, ...]:
        """Sites whose machines answer, sorted; none where the head answers alone."""
        return () if self.folding is None else self.folding.sites

    @property
    def members_(self) -> Mapping[str, Member]:
        """What the sites hold."""
        return {} if self.folding is None else self.folding.members_

    @property
    def hold(self) -> str:
        """Where the machines are: "sites", or "machines" for a model that needs nobody."""
        return "machines" if self.folding is None else self.folding.hold

    @property
    def connection(self) -> Any:
        """The sites behind the machines, None for a whole model."""
        return None if self.folding is None else self.folding.connection

    @property
    def privacy(self) -> Terms | None:
        """Under which terms everything in the model was released: one release for both parts."""
        terms: Terms | None = self._any.privacy
        return terms

    def exposure(self) -> str | None:
        """What wrong sites can do to the machines' part, in words; None if that is nothing."""
        told = (part.exposure() for part in (self.folding, self.ridge) if part is not None)
        return "; ".join(text for text in told if text is not None) or None

    def connect(self, federation: Any) -> "FusionModel":
        """The same model, answered by the sites of ``federation``."""
        connected: FusionModel = federation.connect(self)
        return connected

    # Answers -------------------------------------------------------------------------------------------------------

    def answer(self, X: npt.ArrayLike, *, prior: Prior = None, **options: Any) -> Answer:
        """Labels, probabilities, scores and who came nearest; ``options`` as in ``FoldingModel.site_scores``."""
        if self.folding is None:
            assert self.ridge is not None
            return self.ridge.answer(X, prior=self._asked(prior))
        parts = self._parts(X, prior, explain=True, **options)
        scores, likely = self.scored(parts, prior)
        winners = scores.argmin(axis=1)
        site, batch = self._nearest(parts, winners)
        answered = () if parts.by_site is None else parts.by_site.sites
        missing = {} if parts.by_site is None else parts.by_site.missing
        best = scores[np.arange(len(winners)), winners]
        part = None if self.ridge is None else self._deciding(parts, winners)
        far = parts.scores.min(axis=1)
        return Answer(self.classes_[winners], likely, scores, site, batch, best, answered, missing, part, far)

    def scores(self, X: npt.ArrayLike, *, prior: Prior = None, **options: Any) -> FloatArray:
        """Scores (n, C) in the order of ``classes_``: SMALLER is better; negative logits times the temperature."""
        if self.folding is None:
            assert self.ridge is not None
            return self.ridge.scores(X)
        return self.scored(self._parts(X, prior, **options), prior)[0]

    def predict(
        self, X: npt.ArrayLike, *, prior: Prior = None, abstain: float | None = None, **options: Any
    ) -> npt.NDArray[Any]:
        """Labels, or values, (n,); ties go to the first class.

        With ``abstain`` labels are masked where the model does not know, see ``abstaining``.
        """
        if abstain is not None:
            return self.abstaining(X, abstain, prior, **options)
        if self.folding is None:
            assert self.ridge is not None
            return self.ridge.predict(X, prior=self._asked(prior))
        return np.asarray(self.classes_[self.scores(X, prior=prior, **options).argmin(axis=1)])

    def predict_proba(self, X: npt.ArrayLike, *, prior: Prior = None, **options: Any) -> FloatArray:
        """Probabilities (n, C), fitted to rows that neither part saw."""
        if self.folding is None:
            assert self.ridge is not None
            return self.ridge.predict_proba(X, prior=self._asked(prior))
        return self.scored(self._parts(X, prior, **options), prior)[1]

    def conforming(self, X: npt.ArrayLike, **options: Any) -> tuple[FloatArray, FloatArray | None]:
        """Probabilities (n, C) of both parts, whatever ``visit_`` is, and the strangeness (n,) by the machines."""
        prior = self.prior if self.conformal_ is None else self.conformal_.prior
        whole = replace(self, visit_=Visit(), prior=prior)
        if self.folding is None:
            return whole.predict_proba(X, **options), None
        parts = whole._parts(X, None, **options)
        return whole.scored(parts, None)[1], strangeness(parts.scores)

    @property
    def tells_strangers(self) -> bool:
        """By its machines, where it has some."""
        return self.folding is not None

    @property
    def distance_unit(self) -> float:
        """That of the machines."""
        return 1.0 if self.folding is None else self.folding.distance_unit

    def score(self, X: npt.ArrayLike, y: npt.ArrayLike, **options: Any) -> float:
        """Accuracy, or the coefficient of determination R^2 to regress."""
        from sklearn.metrics import accuracy_score, r2_score  # here, for nothing else needs scikit-learn

        measure = accuracy_score if len(self.classes_) else r2_score
        return float(measure(np.asarray(y), self.predict(X, **options)))

    def explain(self, X: npt.ArrayLike, *, prior: Prior = None, **options: Any) -> FusionExplanation:
        """Which part decided each query, and what each part would say alone."""
        if self.folding is None or self.ridge is None:
            raise InputError("only a model of machines and a head has two parts to compare; use answer")
        parts = self._parts(X, prior, explain=True, **options)
        winners = self.scored(parts, prior)[0].argmin(axis=1)
        head, machines = self._alone(parts)
        site, _ = self._nearest(parts, winners)
        labels = self.classes_
        part = self._deciding(parts, winners)
        return FusionExplanation(labels[winners], part, labels[head], labels[machines], site)

    def _alone(self, parts: FusedParts) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Classes (n,) that the head would say alone, and the machines, which say the same where nobody asked them."""
        head = parts.values.argmax(axis=1)
        return head, np.where(parts.travelled, parts.scores.argmin(axis=1), head)

    def _deciding(self, parts: FusedParts, winners: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """Which part (n,) the classes come from: one of ``PARTS``."""
        head, machines = self._alone(parts)
        agree = 2 * (head == winners).astype(int) + (machines == winners)
        part = np.array(["together", "machines", "head", "both"])[agree]
        return np.where(parts.travelled, part, "head")

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
        columns = self.feature_names_in_ if self.preparation is None else self.preparation.columns
        head.to_onnx(path, columns)

    def _asked(self, prior: Prior) -> Prior:
        if not len(self.classes_):
            return prior
        return self.prior if prior is None else prior

    def _parts(self, X: npt.ArrayLike, prior: Prior, *, explain: bool = False, **options: Any) -> FusedParts:
        """Both parts' word on queries; with ``visit_`` "unsure" only the doubtful ones go to the sites."""
        assert self.folding is not None
        queries = self._rows(X)
        n, labels = len(queries), self.classes_
        values = self.head_values(queries)
        travelled = np.ones(n, dtype=bool)
        if self.ridge is not None and self.visit_.when == "unsure":
            sure = self._head_probabilities(values, prior).max(axis=1, initial=0.0) >= self.visit_.threshold
            travelled = ~sure
        if not travelled.any():
            return FusedParts(values, np.full((n, len(labels)), np.inf), None, travelled)
        by_site = self.folding.site_scores(queries[travelled], explain=explain, **options)
        scores = np.full((n, len(labels)), np.inf)
        places = ClassIndex(labels).numbers(self.folding.classes_)
        scores[np.ix_(travelled, places)] = self.folding.combined(by_site)
        return FusedParts(values, scores, by_site, travelled)

    def _rows(self, X: npt.ArrayLike) -> FloatArray:
        assert self.folding is not None
        return self.folding.checked_rows(X)

    def head_values(self, queries: FloatArray) -> FloatArray:
        """Values (n, C) of the head for checked rows (n, p).

        A class that it does not know is as unlikely as the least likely that it does.
        """
        if self.ridge is None:
            return np.zeros((len(queries), len(self.classes_)))
        if self.folding is not None:
            queries = project(queries, self.folding.basis)
        plain = replace(self.ridge, preparation=None, feature_names_in_=())
        return self.placed_values(plain.decision_function(queries))

    def placed_values(self, own: FloatArray) -> FloatArray:
        """Values (n, C) in the classes of the model, from those of the head's own classes."""
        assert self.ridge is not None
        labels = self.classes_
        values = np.repeat(own.min(axis=1, keepdims=True), len(labels), axis=1)
        values[:, ClassIndex(labels).numbers(self.ridge.classes_)] = own
        return values

    def _shift(self, prior: Prior) -> FloatArray | None:
        """``log(pi' / pi)`` (C,) for the prior asked for; None where nothing moves."""
        asked = self.prior if prior is None else check_prior(prior, self.classes_)
        if asked is None:
            return None
        counts = () if self.ridge is None else self.ridge.class_counts_
        if self.ridge is not None and len(self.ridge.classes_) != len(self.classes_):
            counts = ()
        weights = None if self.ridge is None else self.ridge.parameters.class_weights
        training = weighted_shares(counts)
        made = training if weights is None or training is None else weighted_shares(counts, weights)
        if asked == "training" and training is None:
            return None
        return log_ratio(asked, self.classes_, made=made, training=training)

    def _head_probabilities(self, values: FloatArray, prior: Prior) -> FloatArray:
        assert self.ridge is not None
        shift = self._shift(prior)
        T = self.ridge.temperature_ or self.temperature_
        return probabilities(values if shift is None else values + T * shift, T)

    def scored(self, parts: FusedParts, prior: Prior) -> tuple[FloatArray, FloatArray]:
        """Scores (n, C), SMALLER is better, and probabilities (n, C), both for the prior asked for."""
        shift = self._shift(prior)
        assert self.folding is not None
        if self.ridge is None:
            fused, T = -parts.scores, self.folding.temperature_
        else:
            fused, T = fused_values(parts.values, parts.scores, self.weight_), self.temperature_
        fused = fused if shift is None else fused + T * shift
        likely = probabilities(fused, T)
        if self.ridge is not None and not parts.travelled.all():
            stayed = ~parts.travelled
            likely[stayed] = self._head_probabilities(parts.values[stayed], prior)
            with np.errstate(divide="ignore"):
                fused[stayed] = T * np.log(likely[stayed])
        return -fused, likely

    def _nearest(
        self, parts: FusedParts, winners: npt.NDArray[np.intp]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.intp]]:
        """Site (n,) and batch (n,) that came nearest in the class that won; "" and -1 where nobody was asked."""
        assert self.folding is not None
        site, batch = np.full(len(winners), "", dtype=object), np.full(len(winners), -1, dtype=np.intp)
        if parts.by_site is None or not parts.travelled.any():
            return site.astype(str), batch
        asked = np.flatnonzero(parts.travelled)
        columns = ClassIndex(self.folding.classes_).numbers(self.classes_[winners[asked]], "minus-one")
        known = columns >= 0
        asked, columns, every = asked[known], columns[known], np.flatnonzero(known)
        values = parts.by_site.values[:, every, columns]
        held = parts.by_site.batches[:, every, columns] >= 0
        own = np.where(held, values, np.inf)
        nearest = own.argmin(axis=0)
        some = held.any(axis=0)
        site[asked[some]] = np.array(parts.by_site.sites, dtype=object)[nearest[some]]
        batch[asked[some]] = parts.by_site.batches[nearest, every, columns][some]
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
