"""What each site's part in a model does to the answers for rows of the others: ``kernfed.evaluate(influence=True)``.

Sites are left out one by one, and where they are few in pairs: of two that say the same wrong thing, to leave out one
changes nothing. Testers add up losses with all sites and without some; whoever may ask for these with answers of his
own making can read the labels of the rows kept aside out of them, as out of every evaluation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_count, check_number
from kernfed.base.model import Model
from kernfed.errors import InputError, NotConnected
from kernfed.federation.asking import Federation
from kernfed.federation.ridge.pooling import ask_site_sums
from kernfed.ridge.model import RidgeModel
from kernfed.statistics.bounds import LARGEST_VALUE
from kernfed.testing.exchange import NOTHING_ASIDE, Options, ask_sites, rows_here
from kernfed.testing.harm import Influences, LossSums, SiteSet, claimed_shares, judge, ownership
from kernfed.testing.held_out import MOST_ROWS, Array, HeldOutStatistic, Sums
from kernfed.testing.outcomes import class_numbers

#: Pairs of machines are tried where the sites are no more, and pairs in heads, each of which is solved for.
MOST_PAIRED, MOST_PAIRED_HEADS = 16, 10
#: Sets of sites that one question may name.
_MOST_SETS = 2000
#: No difference of two losses is larger.
_LARGEST_GAIN = 2.0
#: A loss of a regressor is cut here, so that differences of two are numbers.
_LARGEST_LOSS = 1e300


def _judged(
    statistic: "Losses",
    sums: Mapping[str, LossSums],
    counts: Mapping[str, FloatArray],
    liars: int,
    *,
    head: bool,
    missing: Mapping[str, str],
) -> Influences:
    """Influence of single sites, and of pairs of which neither is named and that harm more than both do alone.

    counts : rows (C,) of every class at each site, as far as known. head : whether sites were left out of it, too.
    """
    if not any(tester.rows.sum() for tester in sums.values()):
        raise InputError(NOTHING_ASIDE)
    sets, single = statistic.sets, sum(len(left_out) == 1 for left_out in statistic.sets)
    first, rest = (
        {name: _part(tester, *cut) for name, tester in sums.items()} for cut in ((0, single), (single, None))
    )
    apart, shares = [ownership(counts, left_out) for left_out in sets], claimed_shares(counts)
    asked: Any = {"liars": liars, "labels": statistic.classes > 0}
    sites = judge(first, sets[:single], shares, apart[:single], **asked)
    usual = [found.gain for found in sites]
    pairs = judge(rest, sets[single:], shares, apart[single:], usual=usual, **asked)
    alone = {found.sites[0]: found for found in sites}
    hidden = [
        pair
        for pair in pairs
        if not any(alone[site].named for site in pair.sites)
        and pair.gain > 2 * sum(max(0.0, alone[site].gain) for site in pair.sites)
    ]
    worst, masked = (sorted(found, key=lambda one: (-one.z, one.sites)) for found in (sites, hidden))
    return Influences(tuple(worst), tuple(masked), liars, head, missing)


def measure_influence(
    model: Any,
    federation: Federation,
    *,
    liars: int = 1,
    scale: float = 1.0,
    min_replies: int | None = None,
    timeout: float = 600.0,
) -> Influences:
    """Influence of every site of ``model`` on rows that the others kept aside.

    ``scale`` is the mean squared error of a regressor, the unit of its losses.
    """
    _check_model(model)
    head = _head_of(model)
    names = _sites_of(model, federation)
    sets = (*((name,) for name in names), *_pairs(model, names))
    heads: tuple[RidgeModel, ...] = ()
    counts = _class_counts(model)
    if head is not None:
        site_sums = ask_site_sums(federation, head, timeout=timeout)
        left_out = sets if len(names) <= MOST_PAIRED_HEADS else sets[: len(names)]
        heads = tuple(site_sums.without(sites) for sites in left_out)
        counts = counts or site_sums.counts
    options: Options = {"min_replies": min_replies, "timeout": timeout}
    statistic = Losses(len(_classes(model)), sets, heads, scale)
    sums, missing = ask_sites(model, federation, statistic, options)
    by_site = {site: LossSums(**tester) for site, tester in sums.items()}
    return _judged(statistic, by_site, counts, liars, head=head is None or bool(heads), missing=missing)


def influence_rows(model: Any, holdout: Mapping[str, Any], *, liars: int = 0) -> Influences:
    """Influence of every site whose machines answer for ``model``, on rows that are here: {name: (X, y)}.

    A head stays that of all sites: only they can tell the sums of the others. To sites such rows are queries as any.
    """
    _check_model(model)
    machines = model.folding
    if machines is None:
        raise InputError(
            "only machines can be left out here: ask the sites with kernfed.evaluate(model, federation, influence=True)"
        )
    sets = (*((name,) for name in model.sites), *_pairs(model, model.sites))
    statistic = Losses(len(model.classes_), sets)
    sums = {}
    for name in sorted(holdout):
        rows = rows_here(model, model.classes_, name, holdout)
        if len(rows.y):
            made = statistic.sums(statistic.score(model, rows.X), class_numbers(model.classes_, rows.y))
            sums[name] = LossSums(**made)
    return _judged(statistic, sums, _class_counts(model), liars, head=_head_of(model) is None, missing={})


def _check_model(model: Any) -> None:
    if not isinstance(model, Model) or not model.can_leave_out_sites:
        raise InputError(
            f"the influence of sites is measured for a FoldingModel, a RidgeModel or a FusionModel, got a "
            f"{type(model).__name__}"
        )
    if model.privacy is not None:
        raise InputError(
            "this model is made of what sites released once, and their influence would need their rows: look at each "
            "site's release instead, before it is used"
        )
    if model.needs_connection:
        raise NotConnected("the machines of this model are at its sites: use model.connect(federation) first")
    head = _head_of(model)
    if head is not None and (head.head != "squared" or head.method != "exact"):
        raise InputError(
            f"sites are left out of a squared head by method='exact', which is made of their sums alone; this one is "
            f"{head.head!r} by {head.method!r}"
        )


def _head_of(model: Any) -> RidgeModel | None:
    """The head that a model has, or is."""
    head: RidgeModel | None = model.ridge
    return head


def _sites_of(model: Any, federation: Federation) -> tuple[str, ...]:
    """Sites that the model is made of; a head does not name them, so they are those that are not missing."""
    named: tuple[str, ...] = model.sites
    return named or tuple(site for site in federation.sites if site not in model.missing_)


def _pairs(model: Any, names: Sequence[str]) -> list[SiteSet]:
    """Pairs that may hide each other, where the sites are few enough: of machines under a minimum, or in a head."""
    machines = model.folding
    lowest = machines is not None and machines.parameters.aggregate == "min"
    most = MOST_PAIRED if lowest else MOST_PAIRED_HEADS if _head_of(model) is not None else 0
    return list(combinations(names, 2)) if 3 < len(names) <= most else []


def _class_counts(model: Any) -> dict[str, FloatArray]:
    """Rows (C,) of every class at each site of machines, as stated when these were made; 0 of one that did not."""
    machines = model.folding
    if machines is None:
        return {}
    place = {label: number for number, label in enumerate(_classes(model).tolist())}
    counts: dict[str, FloatArray] = {}
    for site, member in machines.members_.items():
        held, counts[site] = member.held(machines.classes_), np.zeros(len(place))
        if len(member.counts) != len(held):
            continue
        for label, count in zip(held, member.counts, strict=True):
            if label in place:
                counts[site][place[label]] = count
    return counts


def _classes(model: Any) -> npt.NDArray[Any]:
    return np.asarray(model.classes_)


def _part(sums: LossSums, start: int, stop: int | None) -> LossSums:
    """The sums of some of the sets."""
    right = np.concatenate([sums.right[:1], sums.right[1:][start:stop]])
    return LossSums(sums.rows, right, sums.gain[start:stop], sums.square[start:stop], sums.moved[start:stop])


@dataclass(frozen=True)
class Losses(HeldOutStatistic):
    """``LossSums`` with all sites and without each of V ``sets``, from probabilities (n, 1 + V, C).

    ``heads`` are heads without the first sets, in their order. To regress (no ``classes``) there is one for every set,
    scores are values (n, 1 + V), and losses are squared errors in units of ``scale``, whose difference is cut at 2: no
    row decides alone.
    """

    name = "influence"
    high = 1.0 + 1e-6
    sent_as = np.float32

    classes: int
    sets: tuple[SiteSet, ...]
    heads: tuple[RidgeModel, ...] = ()
    scale: float = 1.0

    @classmethod
    def read(cls, classes: int, values: Mapping[str, Any], arrays: Sums, model: Any = None) -> Self:
        """Losses without the sets that a question names; of scores it tells only how many these are."""
        if model is None:
            return cls(classes, ((),) * check_count(values["sets"], "sets", at_most=_MOST_SETS))
        if not model.can_leave_out_sites or model.hold == "sites":
            raise InputError(f"sites cannot be left out of a {type(model).__name__} here")
        sets, heads = _read_sets(values["sets"]), _read_heads(_head_of(model), arrays)
        if len(heads) > len(sets) or (not classes and len(heads) < len(sets)):
            raise InputError("there are more heads than sets, or too few for a regressor")
        return cls(classes, sets, heads, check_number(values["scale"], "scale", above=0))

    def parameters(self, *, model: bool) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Sets, weights and intercepts of heads, and the scale."""
        if not model:
            return {"sets": len(self.sets)}, {}
        values = {"sets": [list(left_out) for left_out in self.sets], "scale": self.scale}
        arrays = {}
        if self.heads:
            arrays["weights"] = np.stack([head.weights_ for head in self.heads])
            if self.heads[0].intercept_ is not None:
                arrays["intercepts"] = np.stack([np.asarray(head.intercept_) for head in self.heads])
        return values, arrays

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Those of ``LossSums``."""
        V, C, most = len(self.sets), max(1, self.classes), _LARGEST_GAIN * MOST_ROWS
        counts = {"rows": Array((C,)), "right": Array((V + 1, C)), "moved": Array((V,))}
        gain = Array((V, C), most, whole=False, signed=True)
        return {**counts, "gain": gain, "square": Array((V, C), _LARGEST_GAIN * most, whole=False)}

    @property
    def otherwise(self) -> FloatArray:
        """No class is more likely than another, whoever is left out; to regress the value 0."""
        sets = 1 + len(self.sets)
        return np.full((sets, self.classes), 1 / self.classes) if self.classes else np.zeros(sets)

    def score(self, model: Any, X: FloatArray, **options: Any) -> FloatArray:
        """Probabilities (n, 1 + V, C), or values (n, 1 + V)."""
        options.pop("min_replies", None)  # a site that is silent for the test would come out clean
        if self.classes:
            return np.asarray(model.probabilities_without(X, self.sets, self.heads, **options)).transpose(1, 0, 2)
        head = _head_of(model)
        assert head is not None
        return np.stack(head.values_by([head, *self.heads], X))[:, :, 0].T

    def usable(self, scores: FloatArray) -> npt.NDArray[np.bool_]:
        """Rows with probabilities, or with values that are not too large."""
        return super().usable(scores) if self.classes else np.asarray((np.abs(scores) <= LARGEST_VALUE).all(axis=1))

    def sums(self, scores: FloatArray, labels: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """The sums of losses, over rows whose labels are known."""
        made = _label_sums(labels, scores.transpose(1, 0, 2)) if self.classes else self._value_sums(labels, scores)
        return dict(vars(made))

    def _value_sums(self, truth: npt.NDArray[Any], predicted: FloatArray) -> LossSums:
        """Sums of rows with values ``truth`` (n,) and predicted ones (n, 1 + V); nothing is right or wrong."""
        losses = np.minimum((predicted.T - truth.astype(np.float64)) ** 2 / self.scale, _LARGEST_LOSS)
        gains = np.clip(losses[:1] - losses[1:], -_LARGEST_GAIN, _LARGEST_GAIN)
        none = np.zeros((len(losses), 1), dtype=np.int64)
        sums = gains.sum(axis=1, keepdims=True), (gains**2).sum(axis=1, keepdims=True)
        return LossSums(np.array([len(truth)]), none, *sums, none[1:, 0])

    def check_sums(self, sums: Sums) -> None:
        """Refuse sums that no rows can have."""
        made = LossSums(**sums)
        slack = 1e-6 * (1 + made.rows)
        most = _LARGEST_GAIN * made.rows + slack
        if (made.right > made.rows).any() or (made.moved > made.rows.sum()).any():
            raise InputError("no more rows can be right, or change their label, than there are")
        if (np.abs(made.gain) > most).any() or (made.square > _LARGEST_GAIN * most + slack).any():
            raise InputError("no rows have such differences of losses")
        if (made.gain**2 > made.rows * made.square + slack * most).any():  # Cauchy-Schwarz
            raise InputError("differences of losses and their squares contradict each other")

    def check_sent(self, sums: Sums, scores: FloatArray) -> None:
        """Refuse sums of more rows than those with these scores."""
        if self.rows(sums) > len(scores):
            raise InputError(f"the sums must be of the {len(scores):,} rows that were asked")


def _label_sums(numbers: npt.NDArray[np.intp], probabilities: FloatArray) -> LossSums:
    """Sums of rows with class ``numbers`` (n,), C for labels that are none, and probabilities (1 + V, n, C)."""
    classes = probabilities.shape[2]
    known = numbers < classes
    truth, likely = numbers[known], probabilities[:, known]
    of_label = np.take_along_axis(likely, truth[None, :, None], axis=2)[:, :, 0]
    losses = (likely**2).sum(axis=2) - 2 * of_label + 1
    labels = likely.argmax(axis=2)
    member = np.zeros((len(truth), classes))
    member[np.arange(len(truth)), truth] = 1.0
    gains = losses[:1] - losses[1:]
    return LossSums(
        member.sum(axis=0).astype(np.int64),
        ((labels == truth) @ member).astype(np.int64),
        gains @ member,
        gains**2 @ member,
        (labels[1:] != labels[:1]).sum(axis=1).astype(np.int64),
    )


def _read_sets(values: Any) -> tuple[SiteSet, ...]:
    """The sets of sites that a question names: one site each, or two."""
    if not isinstance(values, list) or not 0 < len(values) <= _MOST_SETS:
        raise InputError(f"sets must be 1 to {_MOST_SETS:,} lists of sites")
    if not all(
        isinstance(sites, list) and 0 < len(sites) <= 2 and all(isinstance(n, str) for n in sites) for sites in values
    ):
        raise InputError("a set is one site, or two")
    return tuple(tuple(sites) for sites in values)


def _read_heads(head: RidgeModel | None, arrays: Sums) -> tuple[RidgeModel, ...]:
    """Heads on the features of the model's ``head``, with weights (V, M, C) and intercepts (V, C) of the question."""
    weights, offsets = arrays.get("weights"), arrays.get("intercepts")
    if weights is None:
        return ()
    if head is None or weights.ndim != 3 or weights.shape[1:] != head.weights_.shape or not np.isfinite(weights).all():
        raise InputError("the heads must have the shape of the model's own")
    wanted = None if head.intercept_ is None else (len(weights), *head.intercept_.shape)
    finite = offsets is None or np.isfinite(offsets).all()
    if (None if offsets is None else offsets.shape) != wanted or not finite:
        raise InputError("the intercepts must have the shape of the model's own")
    return tuple(
        replace(head, weights_=matrix, intercept_=None if offsets is None else offsets[place])
        for place, matrix in enumerate(weights)
    )
