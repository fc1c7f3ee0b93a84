"""The model of a personalised federation: a predictor for every site, and who learned from whom."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans

from kernfed.base.checks import FloatArray, check_choice, check_count, check_finite, check_number
from kernfed.base.fields import from_values
from kernfed.base.plain import MOST_COLUMNS, check_flag, read_columns, read_reasons, read_text
from kernfed.base.prior import Prior, prior_from_values, prior_to_values, weighted_shares
from kernfed.base.threads import single_blas_thread
from kernfed.data.preparation import Preparation, preparation_values, read_preparation
from kernfed.errors import InputError
from kernfed.files import Record, register
from kernfed.kernels.head import Head
from kernfed.kernels.predictor import Predictor, ProblemModel
from kernfed.personal.gradient import check_simplex, probabilities
from kernfed.personal.prior import Gain, SitePrior
from kernfed.personal.statistics import Coordinates, Problem, SiteStatistics
from kernfed.promise import Terms

#: "ridge": coefficients (d, q) on features; "logistic": (P,); "network": (P,) of a ReLU network; "none": weights only.
KINDS = ("ridge", "logistic", "network", "none")


@dataclass(frozen=True, eq=False)
class SiteModel(Predictor):
    """The predictor of one site. ``hidden`` are the layers of a network."""

    problem: Problem
    kind: str
    coordinates_: Coordinates
    coefficients_: FloatArray
    hidden: tuple[int, ...] = ()
    feature_names_in_: tuple[str, ...] = ()
    prior: Prior = "training"
    preparation: Preparation | None = None

    def _solved(self) -> Problem:
        return self.problem

    def _values(self, rows: FloatArray) -> FloatArray:
        """Fitted indicators of ridge, probabilities of logistic, network outputs."""
        features = self.problem.transform(rows)
        values: FloatArray
        with single_blas_thread():
            if self.kind == "ridge":
                values = self.coordinates_.design(features) @ self.coefficients_ + self.coordinates_.target_centre
            elif self.kind == "logistic":
                values = probabilities(self.coefficients_, features, self.problem.n_targets)
            else:
                values = network_outputs(self.problem, self.hidden, self.coefficients_, features)
        return np.asarray(values)

    def _head(self) -> Head:
        if self.kind != "ridge":
            raise InputError(f"ONNX files are made of heads of kind 'ridge', this predictor is of kind {self.kind!r}")
        known, width = self.coordinates_, len(self.coordinates_.centre)
        weights, last = self.coefficients_[:width], self.coefficients_[width:]
        offset = known.target_centre - known.centre @ weights + known.constant * last.sum(axis=0)
        return self._made_head(weights, offset, self.problem.feature_map())

    @property
    def _temperature(self) -> float | None:
        """Outputs of a network are log-odds; otherwise probabilities are the vectors nearest to the values."""
        return 1.0 if self.kind == "network" else None

    def _training_shares(self) -> FloatArray | None:
        """Of all sites' rows together, which the coordinates are around; not known without an intercept."""
        return weighted_shares(self.coordinates_.target_centre) if self.problem.task == "classify" else None


@dataclass(frozen=True, eq=False)
class Newcomer:
    """A site that joined: its weights on the sites of the model, on itself, and its predictor."""

    weights: Mapping[str, float]
    own: float
    model: SiteModel


@dataclass(frozen=True, eq=False)
class GroupKnowledge:
    """What a model made with ``weights="auto"`` keeps for sites that join, none of it of a single site's rows.

    prior : of a new site. sources : (K, B) whose rows the groups are made of. second : (d, d) second moment of all
    sites' rows. spread, scale : of coefficients around and among groups. members : (B, K) of the sites that took part.
    """

    prior: SitePrior
    sources: FloatArray
    second: FloatArray
    spread: float
    scale: float
    members: FloatArray


@dataclass(frozen=True, eq=False, repr=False)
class PersonalModel(ProblemModel):
    """A predictor for each of B sites.

    sites : names, in the order of rows and columns of ``weights_`` (B, B), which says how much each site learns from
    each other one (rows add up to 1; for "auto" see ``group_weights``). rule : how the weights were chosen. gains_ :
    by site, what the others were worth on its own rows, empty if not asked for. missing_ : sites that did not take
    part, with reasons. knowledge_ : of "auto", for sites that join. feature_names_in_ : where tables had them. prior :
    shares of classes where sites use it, see ``Predictor``; of training they are those of all sites' rows together.
    privacy : under which terms sites told what the weights come from, None where they told it as it is.
    """

    problem: Problem
    sites: tuple[str, ...] = field()
    kind: str
    coordinates_: Coordinates
    coefficients_: FloatArray
    weights_: FloatArray
    rule: str
    hidden: tuple[int, ...] = ()
    gains_: Mapping[str, Gain] = field(default_factory=dict)
    missing_: Mapping[str, str] = field(default_factory=dict)
    knowledge_: GroupKnowledge | None = None
    feature_names_in_: tuple[str, ...] = ()
    privacy: Terms | None = None
    preparation: Preparation | None = None
    prior: Prior = "training"

    is_personal = True

    def __str__(self) -> str:
        groups = len(set(self.groups_.values()))
        text = f"PersonalModel of {len(self.sites)} site(s) in {groups} group(s), {self.kind} by weights {self.rule!r}"
        if not self.gains_:
            return text
        better = sum(gain.gain > 0 for gain in self.gains_.values())
        alone, together = (
            np.median([getattr(gain, name) for gain in self.gains_.values()]) for name in ("alone", "together")
        )
        return (
            f"{text}\nerror on own rows left out, median over {len(self.gains_)} site(s): alone {alone:.3g}, "
            f"together {together:.3g}; together is better at {better}"
        )

    __repr__ = __str__

    def _solved(self) -> Problem:
        return self.problem

    def for_site(self, site: str) -> SiteModel:
        """The predictor of a site that took part."""
        if site not in self.sites:
            reason = self.missing_.get(site)
            told = f"; it is missing: {reason}" if reason else f"; there are {', '.join(map(repr, self.sites[:20]))}"
            raise InputError(f"no model for site {site!r}{told}")
        if self.kind == "none":
            raise InputError("this model has weights only; fit with model='ridge' to predict")
        place = self.sites.index(site)
        own = self.coefficients_[place]
        names, prepared = self.feature_names_in_, self.preparation
        return SiteModel(self.problem, self.kind, self.coordinates_, own, self.hidden, names, self.prior, prepared)

    @cached_property
    def groups_(self) -> dict[str, int]:
        """Group of every site: those found by "auto" (a site alone is one), otherwise clusters of ``weights_``."""
        if self.knowledge_ is None:
            labels = weight_clusters(self.weights_)
        else:
            members = self.knowledge_.members
            group, alone = members.argmax(axis=1), members.shape[1] - 1
            labels = renumber(np.where(group == alone, alone + np.arange(len(group)), group))
        return dict(zip(self.sites, labels, strict=True))

    def join(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Newcomer:
        """Weights and predictor of a new site with rows X (n, p) and labels or values y (n,)."""
        rows = self._rows(X)
        targets = self.problem.targets(np.asarray(y))
        return self.join_statistics(SiteStatistics.from_rows(self.problem.transform(rows), targets))

    def join_statistics(self, site: SiteStatistics) -> Newcomer:
        """Weights and predictor of a new site from its one message; nothing of the others changes."""
        if self.knowledge_ is None:
            raise InputError(
                f"a site can join a model made with weights='auto', this one has {self.rule!r}: "
                "fit again with the new site"
            )
        known = self.knowledge_
        X, Y = self.coordinates_.compress(site)
        coefficients, members = known.prior.fit(X, Y, site.n)
        values, axes = np.linalg.eigh(X.T @ X)
        gain = (
            members.sum(axis=0)
            * known.spread
            * values[:, None]
            / (known.prior.noises + known.spread * np.maximum(values, 0.0)[:, None])
        ).sum(axis=1)
        along = np.einsum("dr,de,er->r", axes, known.second, axes)
        own = float(gain @ along) / max(float(along.sum()), 1e-300)
        learned = (1 - min(max(own, 0.0), 1.0)) * known.scale / max(known.scale + known.spread, 1e-300)
        shares = learned * (members.sum(axis=1)[:-1] @ known.sources)
        names, prepared = self.feature_names_in_, self.preparation
        model = SiteModel(self.problem, "ridge", self.coordinates_, coefficients, (), names, self.prior, prepared)
        return Newcomer(dict(zip(self.sites, shares.tolist(), strict=True)), 1 - float(shares.sum()), model)


def network_outputs(problem: Problem, hidden: Sequence[int], parameters: FloatArray, X: FloatArray) -> FloatArray:
    """Outputs (n, q) of one ReLU network; needs the extra ``[torch]``."""
    from kernfed.personal.network import outputs, relu_network  # torch is loaded where networks are

    module = relu_network(problem.n_features, hidden, problem.n_targets)
    return np.asarray(outputs(module, parameters[None], X)[0])


def weight_clusters(weights: npt.ArrayLike) -> list[int]:
    """Groups of sites that learn from each other: spectral clusters of W (B, B) without its diagonal.

    Sites that learn from nobody, and from whom nobody learns, are groups of their own. The number of clusters in the
    rest is at the largest gap of the eigenvalues of the symmetric normalised weights (von Luxburg 2007).
    """
    W = check_simplex(weights)
    B = len(W)
    between = W + W.T
    np.fill_diagonal(between, 0.0)
    between[between < 1e-3 / B] = 0.0
    _, labels = connected_components(between, directed=False)
    for component in np.unique(labels):
        places = np.flatnonzero(labels == component)
        if len(places) > 2:
            labels[places] = labels.max() + 1 + _spectral(between[np.ix_(places, places)])
    return renumber(labels)


def _spectral(between: FloatArray) -> npt.NDArray[np.intp]:
    degree = between.sum(axis=1)
    normal = between / np.sqrt(degree) / np.sqrt(degree)[:, None]
    values, vectors = np.linalg.eigh(normal)
    count = int(np.argmax(-np.diff(values[::-1])[: max(1, len(values) // 2)])) + 1
    if count == 1:
        return np.zeros(len(between), dtype=np.intp)
    points = vectors[:, -count:]
    points = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-300)
    return np.asarray(KMeans(count, n_init=5, random_state=0).fit_predict(points), dtype=np.intp)


def renumber(labels: npt.NDArray[Any]) -> list[int]:
    """Labels numbered from 0 in the order in which they appear."""
    order: dict[int, int] = {}
    return [order.setdefault(label, len(order)) for label in labels.tolist()]


# Files ------------------------------------------------------------------------------------------------------------


def _dump_site(model: SiteModel) -> Record:
    values = {
        "problem": model.problem.to_values(),
        "kind": model.kind,
        "hidden": list(model.hidden),
        "columns": list(model.feature_names_in_),
        "prior": prior_to_values(model.prior, model.classes_),
        **preparation_values(model.preparation),
    }
    return Record({"coefficients": model.coefficients_, **model.coordinates_.to_arrays()}, values)


def _load_site(record: Record) -> SiteModel:
    problem = Problem.from_values(record.values["problem"])
    kind = check_choice(record.values["kind"], "kind", KINDS)
    coordinates = Coordinates.from_arrays(record.arrays)
    coefficients = record.arrays["coefficients"]
    check_finite(coefficients, "coefficients")
    hidden = tuple(check_count(size, "size of a layer", at_most=MOST_COLUMNS) for size in record.values["hidden"])
    expected = _coefficient_shape(problem, kind, coordinates, hidden)
    if coefficients.dtype.kind != "f" or (kind != "none" and coefficients.shape != expected):
        raise InputError(f"coefficients must have shape {expected}, got {coefficients.dtype} of {coefficients.shape}")
    columns = read_columns(record.values.get("columns", []), problem.width)
    preparation = read_preparation(record.values, problem.width)
    prior = prior_from_values(record.values.get("prior", "training"), problem.labels)
    return SiteModel(problem, kind, coordinates, coefficients, hidden, columns, prior, preparation)


def _coefficient_shape(problem: Problem, kind: str, coordinates: Coordinates, hidden: Sequence[int]) -> tuple[int, ...]:
    """Shape of a site's coefficients; a network has weights and offsets of every layer, logistic regression of one."""
    if kind == "ridge":
        if coordinates.centre.shape != (problem.n_features,) or coordinates.target_centre.shape != (problem.n_targets,):
            raise InputError(f"centres must be of {problem.n_features} features and {problem.n_targets} targets")
        return coordinates.dimension, problem.n_targets
    if kind == "logistic" and problem.task != "classify":
        raise InputError("logistic models classify")
    sizes = (problem.n_features, *(hidden if kind == "network" else ()), problem.n_targets)
    return (sum((before + 1) * after for before, after in itertools.pairwise(sizes)),)


def _dump(model: PersonalModel) -> Record:
    arrays = {"coefficients": model.coefficients_, "weights": model.weights_, **model.coordinates_.to_arrays()}
    knowledge = model.knowledge_
    if knowledge is not None:
        arrays |= {f"prior.{name}": array for name, array in knowledge.prior.to_arrays().items()}
        arrays |= {
            "sources": knowledge.sources,
            "second": knowledge.second,
            "members": knowledge.members,
            "scales": np.array([knowledge.spread, knowledge.scale]),
        }
    values = {
        "problem": model.problem.to_values(),
        "sites": list(model.sites),
        "kind": model.kind,
        "rule": model.rule,
        "hidden": list(model.hidden),
        "gains": {site: asdict(gain) for site, gain in model.gains_.items()},
        "missing": dict(model.missing_),
        "groups": knowledge is not None,
        "columns": list(model.feature_names_in_),
        "prior": prior_to_values(model.prior, model.classes_),
        **preparation_values(model.preparation),
    }
    if model.privacy is not None:
        values["privacy"] = model.privacy.to_values()
    return Record(arrays, values)


def _load(record: Record) -> PersonalModel:
    values, arrays = record.values, record.arrays
    sites = tuple(read_text(site, "site") for site in values["sites"])
    if not sites or len(set(sites)) != len(sites):
        raise InputError(f"sites must have names of their own, got {sites!r:.60}")
    weights = check_simplex(arrays["weights"])
    if weights.shape != (len(sites), len(sites)) or len(arrays["coefficients"]) != len(sites):
        raise InputError(f"weights and coefficients must be of {len(sites)} sites, got {weights.shape}")
    first = Record({**arrays, "coefficients": arrays["coefficients"][0]}, values)
    checked = _load_site(first)
    check_finite(arrays["coefficients"], "coefficients")
    knowledge = None
    if check_flag(values["groups"]):
        knowledge = _load_knowledge(arrays, len(sites), checked)
    return PersonalModel(
        checked.problem,
        sites,
        checked.kind,
        checked.coordinates_,
        arrays["coefficients"],
        weights,
        read_text(values["rule"], "rule"),
        checked.hidden,
        {site: from_values(Gain, gain) for site, gain in values["gains"].items()},
        read_reasons(values["missing"]),
        knowledge,
        checked.feature_names_in_,
        Terms.from_values(values["privacy"]) if "privacy" in values else None,
        checked.preparation,
        checked.prior,
    )


def _load_knowledge(arrays: Mapping[str, npt.NDArray[Any]], sites: int, model: SiteModel) -> GroupKnowledge:
    """What is kept for sites that join, of the shapes that the groups and the coefficients have."""
    prior = SitePrior.from_arrays({n.removeprefix("prior."): a for n, a in arrays.items() if n.startswith("prior.")})
    spread, scale = (check_number(number, "scales", at_least=0) for number in arrays["scales"].tolist())
    groups, d = len(prior.means), model.coordinates_.dimension
    expected = {
        "sources": (groups - 1, sites),
        "second": (d, d),
        "members": (sites, groups),
        "prior.means": (groups, d, model.problem.n_targets),
    }
    for name, shape in expected.items():
        if arrays[name].shape != shape or arrays[name].dtype != np.float64:
            raise InputError(
                f"{name} must be float64 of shape {shape}, got {arrays[name].dtype} of {arrays[name].shape}"
            )
    return GroupKnowledge(prior, arrays["sources"], arrays["second"], spread, scale, arrays["members"])


register("SiteModel", 1, SiteModel, _dump_site, _load_site)
register("PersonalModel", 1, PersonalModel, _dump, _load)
