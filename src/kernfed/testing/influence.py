"""What each site's part in a model does to the answers for rows of the others: ``kernfed.evaluate(influence=True)``.

Sites are left out one by one, and where they are few in pairs: of two that say the same wrong thing, to leave out one
changes nothing. A model that is whole travels to the testers. Of machines that stay at their sites the rows kept aside
travel as queries. What testers tell are sums of losses; whoever may ask for these with answers of his own making can
read the labels of the rows kept aside out of them, as out of every evaluation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_number
from kernfed.data.preparation import prepared_rows
from kernfed.errors import InputError, NotConnected, Refused
from kernfed.federation.asking import Federation
from kernfed.federation.ridge.without import ask_site_sums
from kernfed.files import labels_from_values, labels_to_values, to_record
from kernfed.fusion.model import FusionModel
from kernfed.fusion.without import probabilities_without, values_without
from kernfed.kahm.model import FoldingModel
from kernfed.ridge.model import RidgeModel
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import task
from kernfed.site.rows import check_site_rows
from kernfed.site.site import Site
from kernfed.testing.harm import Influences, LossSums, SiteSet, claimed_shares, judge, ownership
from kernfed.testing.held_out import ask_held_out, check_labels_alike, class_numbers, labelled_rows
from kernfed.testing.predictors import NOTHING_ASIDE, is_regressor, read_model

#: Pairs of machines are tried where the sites are no more, and pairs in heads, each of which is solved for.
MOST_PAIRED, MOST_PAIRED_HEADS = 16, 10
#: Sets of sites that one question may name.
_MOST_SETS = 2000


@dataclass(frozen=True)
class _Plan:
    """Sets that are left out, single sites first, and heads without these.

    counts : rows (C,) of every class at each site, as far as told. scale : of squared errors, to regress.
    """

    model: Any
    sets: tuple[SiteSet, ...]
    heads: tuple[RidgeModel, ...]
    counts: Mapping[str, FloatArray]
    liars: int
    scale: float = 1.0

    @property
    def singles(self) -> int:
        return sum(len(own) == 1 for own in self.sets)

    def judged(self, told: Mapping[str, LossSums], missing: Mapping[str, str] | None = None) -> Influences:
        """Singles, and pairs of which neither is named and that harm more than both do alone."""
        if not any(sums.rows.sum() for sums in told.values()):
            raise InputError(NOTHING_ASIDE)
        shares, count = claimed_shares(self.counts), self.singles
        asked: Any = {"liars": self.liars, "labels": not is_regressor(self.model)}
        first, rest = ({name: _part(sums, *cut) for name, sums in told.items()} for cut in ((0, count), (count, None)))
        apart = [ownership(self.counts, own) for own in self.sets]
        sites = judge(first, self.sets[:count], shares, apart[:count], **asked)
        usual = [own.gain for own in sites]
        pairs = judge(rest, self.sets[count:], shares, apart[count:], usual=usual, **asked)
        alone = {own.sites[0]: own for own in sites}
        hidden = [
            own
            for own in pairs
            if not any(alone[site].named for site in own.sites)
            and own.gain > 2 * sum(max(0.0, alone[site].gain) for site in own.sites)
        ]
        worst = sorted(sites, key=lambda own: (-own.z, own.sites))
        masked = sorted(hidden, key=lambda own: (-own.z, own.sites))
        head = bool(self.heads) or _head_of(self.model) is None
        return Influences(tuple(worst), tuple(masked), self.liars, head, missing or {})


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
        sums = ask_site_sums(federation, head, timeout=timeout)
        left_out = sets if len(names) <= MOST_PAIRED_HEADS else sets[: len(names)]
        heads = tuple(sums.without(own) for own in left_out)
        counts = counts or sums.counts
    plan = _Plan(model, sets, heads, counts, liars, scale)
    options: Any = {"min_replies": min_replies, "timeout": timeout}
    if getattr(model, "connection", None) is not None:
        return _by_scores(plan, federation, options)
    classes, count = max(1, len(_classes(model))), len(plan.sets)

    def check(_: str, payload: Payload) -> None:
        LossSums.from_arrays(payload.arrays, count, classes)

    replies = federation.ask("influence", _question(plan), check=check, **options)
    missing = {site: refusal.reason for site, refusal in replies.missing.items()}
    return plan.judged({site: LossSums.from_arrays(p.arrays, count, classes) for site, p in replies}, missing)


def influence_rows(model: Any, holdout: Mapping[str, Any], *, liars: int = 0) -> Influences:
    """Influence of every site whose machines answer for ``model``, on rows that are here: {name: (X, y)}.

    A head stays that of all sites: only they can tell the sums of the others. To sites such rows are queries as any.
    """
    _check_model(model)
    machines = model.folding if isinstance(model, FusionModel) else model
    if not isinstance(machines, FoldingModel):
        raise InputError(
            "only machines can be left out here: ask the sites with kernfed.evaluate(model, federation, influence=True)"
        )
    singles = [(name,) for name in model.sites]
    plan = _Plan(model, (*singles, *_pairs(model, model.sites)), (), _class_counts(model), liars)
    told = {}
    for name in sorted(holdout):
        X, y = holdout[name][:2]
        rows = check_site_rows(prepared_rows(model.preparation, X), y, None, name)
        check_labels_alike(model.classes_, rows, name)
        if len(rows.y):
            likely = probabilities_without(model, rows.X, plan.sets)
            told[name] = LossSums.of_labels(class_numbers(model.classes_, rows.y), likely)
    return plan.judged(told)


def _by_scores(plan: _Plan, federation: Federation, options: Any) -> Influences:
    """Let all sites answer for the rows kept aside, and every tester add up its own."""
    model, sets = plan.model, len(plan.sets)

    def answer(rows: FloatArray, **asked: Any) -> FloatArray:
        # All machines must answer, whoever sends rows: a site that is silent for the test would come out clean.
        likely = probabilities_without(model, rows, plan.sets, plan.heads, timeout=asked["timeout"])
        return np.ascontiguousarray(likely.transpose(1, 0, 2), dtype=np.float32)

    answered, missing = ask_held_out(model, federation, answer, options)
    classes = labels_to_values(model.classes_)
    questions = {
        site: Payload({"probabilities": own}, {"classes": classes}) for site, own in answered.items() if len(own)
    }
    if not questions:
        raise InputError(NOTHING_ASIDE)

    def check(site: str, payload: Payload) -> None:
        sums = LossSums.from_arrays(payload.arrays, sets, len(model.classes_))
        if sums.rows.sum() > len(answered[site]):
            raise InputError(f"the sums must be of the {len(answered[site]):,} rows that were asked")

    replies = federation.ask("influence_scores", questions, check=check, **options)
    missing |= {site: refusal.reason for site, refusal in replies.missing.items()}
    told = {site: LossSums.from_arrays(p.arrays, sets, len(model.classes_)) for site, p in replies}
    return plan.judged(told, missing)


def _check_model(model: Any) -> None:
    if not isinstance(model, (FoldingModel, RidgeModel, FusionModel)):
        raise InputError(
            f"the influence of sites is measured for a FoldingModel, a RidgeModel or a FusionModel, got a "
            f"{type(model).__name__}"
        )
    if model.privacy is not None:
        raise InputError(
            "this model is made of what sites released once, and their influence would need their rows: look at each "
            "site's release instead, before it is used"
        )
    if getattr(model, "hold", "machines") == "sites" and getattr(model, "connection", None) is None:
        raise NotConnected("the machines of this model are at its sites: use model.connect(federation) first")
    head = _head_of(model)
    if head is not None and (head.head != "squared" or head.method != "exact"):
        raise InputError(
            f"sites are left out of a squared head by method='exact', which is made of their sums alone; this one is "
            f"{head.head!r} by {head.method!r}"
        )


def _head_of(model: Any) -> RidgeModel | None:
    """The head that a model has, or is."""
    head: RidgeModel | None = model if isinstance(model, RidgeModel) else getattr(model, "ridge", None)
    return head


def _sites_of(model: Any, federation: Federation) -> tuple[str, ...]:
    """Sites that the model is made of; a head does not name them, so they are those that are not missing."""
    own: tuple[str, ...] = getattr(model, "sites", ())
    return own or tuple(site for site in federation.sites if site not in model.missing_)


def _pairs(model: Any, names: Sequence[str]) -> list[SiteSet]:
    """Pairs that may hide each other, where the sites are few enough: of machines under a minimum, or in a head."""
    machines = model.folding if isinstance(model, FusionModel) else model
    lowest = isinstance(machines, FoldingModel) and machines.parameters.aggregate == "min"
    most = MOST_PAIRED if lowest else MOST_PAIRED_HEADS if _head_of(model) is not None else 0
    return list(combinations(names, 2)) if 3 < len(names) <= most else []


def _class_counts(model: Any) -> dict[str, FloatArray]:
    """Rows (C,) of every class at each site of machines, as they told when these were made; 0 of one that did not."""
    machines = model.folding if isinstance(model, FusionModel) else model
    if not isinstance(machines, FoldingModel):
        return {}
    place = {label: number for number, label in enumerate(_classes(model).tolist())}
    told: dict[str, FloatArray] = {}
    for site, member in machines.members_.items():
        held, told[site] = member.held(machines.classes_), np.zeros(len(place))
        if len(member.counts) != len(held):
            continue
        for label, count in zip(held, member.counts, strict=True):
            if label in place:
                told[site][place[label]] = count
    return told


def _classes(model: Any) -> npt.NDArray[Any]:
    return np.asarray(getattr(model, "classes_", ()))


def _part(sums: LossSums, start: int, stop: int | None) -> LossSums:
    """The sums of some of the sets."""
    right = np.concatenate([sums.right[:1], sums.right[1:][start:stop]])
    return LossSums(sums.rows, right, sums.gain[start:stop], sums.square[start:stop], sums.moved[start:stop])


# Messages ---------------------------------------------------------------------------------------------------------


def _question(plan: _Plan) -> Payload:
    """The model, the sets to leave out and the heads without them."""
    record = to_record(plan.model)
    arrays: dict[str, Any] = {f"model.{name}": array for name, array in record.arrays.items()}
    if plan.heads:
        arrays["weights"] = np.stack([head.weights_ for head in plan.heads])
        if plan.heads[0].intercept_ is not None:
            arrays["intercepts"] = np.stack([np.asarray(head.intercept_) for head in plan.heads])
    values = {"model": dict(record.values), "sets": [list(own) for own in plan.sets], "scale": plan.scale}
    return Payload(arrays, values)


def _read_sets(values: Any) -> list[SiteSet]:
    if not isinstance(values, list) or not 0 < len(values) <= _MOST_SETS:
        raise Refused("bad question", f"sets must be 1 to {_MOST_SETS:,} lists of sites")
    if not all(isinstance(own, list) and 0 < len(own) <= 2 and all(isinstance(n, str) for n in own) for own in values):
        raise Refused("bad question", "a set is one site, or two")
    return [tuple(own) for own in values]


def _read_heads(model: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> list[RidgeModel]:
    """Heads on the features of the model's own, with weights (V, M, C) and intercepts (V, C) of the question."""
    weights, head = arrays.get("weights"), _head_of(model)
    if weights is None:
        return []
    offsets = arrays.get("intercepts")
    if head is None or weights.ndim != 3 or weights.shape[1:] != head.weights_.shape or not np.isfinite(weights).all():
        raise Refused("bad question", "the heads must have the shape of the model's own")
    wanted = None if head.intercept_ is None else (len(weights), *head.intercept_.shape)
    if (None if offsets is None else offsets.shape) != wanted or (
        offsets is not None and not np.isfinite(offsets).all()
    ):
        raise Refused("bad question", "the intercepts must have the shape of the model's own")
    return [
        replace(head, weights_=own, intercept_=None if offsets is None else offsets[place])
        for place, own in enumerate(weights)
    ]


@task("influence", leaves="statistics")
def influence_of_model(site: Site, payload: Payload) -> Payload:
    """Sums of losses of the held-out rows, by a model that came with the question and without some of its sites."""
    start = "model."
    own = {name.removeprefix(start): array for name, array in payload.arrays.items() if name.startswith(start)}
    held = len(site.held_out().y)
    model = read_model(site, own, payload.values["model"], held)
    if not isinstance(model, (FoldingModel, RidgeModel, FusionModel)) or getattr(model, "hold", "machines") == "sites":
        raise Refused("bad question", f"sites cannot be left out of a {type(model).__name__} here")
    site.allow(numbers=sum(int(array.size) for array in payload.arrays.values()))
    sets, heads = _read_sets(payload.values.get("sets")), _read_heads(model, payload.arrays)
    site.allow(numbers=(1 + len(sets)) * held * max(1, len(_classes(model))))
    if len(heads) > len(sets):
        raise Refused("bad question", "there are more heads than sets")
    if is_regressor(model):
        return Payload(_value_sums(site, model, heads, payload.values).to_arrays())
    rows = labelled_rows(site, model.classes_)
    if not len(rows.y):
        return Payload(_no_sums(len(sets), len(model.classes_)).to_arrays())
    likely = probabilities_without(model, rows.X, sets, heads)
    return Payload(LossSums.of_labels(class_numbers(model.classes_, rows.y), likely).to_arrays())


def _value_sums(site: Site, model: Any, heads: Sequence[RidgeModel], values: Mapping[str, Any]) -> LossSums:
    rows, head = site.held_out(), _head_of(model)
    scale = check_number(values["scale"], "scale", above=0)
    if head is None or rows.y.dtype.kind not in "biuf":
        raise Refused("bad question", "a regressor is tested on numbers")
    if not len(rows.y):
        return _no_sums(len(heads), 1)
    predicted = values_without(head, rows.X, heads)[:, :, 0]
    return LossSums.of_values(rows.y.astype(np.float64), predicted, scale)


def _no_sums(sets: int, classes: int) -> LossSums:
    return LossSums.of_labels(np.zeros(0, dtype=np.intp), np.zeros((sets + 1, 0, classes)))


@task("influence_scores", leaves="statistics")
def influence_scores(site: Site, payload: Payload) -> Payload:
    """Sums of losses of the held-out rows, in their order, by the probabilities (n, 1 + V, C) that came."""
    likely = payload.arrays["probabilities"]
    site.allow(numbers=int(likely.size))
    classes = labels_from_values(payload.values["classes"])
    rows = labelled_rows(site, classes)
    if likely.ndim != 3 or (len(likely), likely.shape[2]) != (len(rows.y), len(classes)):
        raise Refused("bad question", f"expected probabilities for {len(rows.y)} rows, got {likely.shape}")
    if not 1 < likely.shape[1] <= 1 + _MOST_SETS or likely.dtype not in (np.float32, np.float64):
        raise Refused("bad question", f"expected floats of 1 to {_MOST_SETS:,} sets, got {likely.dtype}")
    if not ((likely >= 0) & (likely <= 1 + 1e-6)).all():  # refuses NaN, too
        raise Refused("bad question", "probabilities must be between 0 and 1")
    by_set = likely.transpose(1, 0, 2).astype(np.float64)
    return Payload(LossSums.of_labels(class_numbers(classes, rows.y), by_set).to_arrays())
