"""What is known of a model beside the model itself: how it did on rows it had not seen, who decided, what travelled."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.data.preparation import prepared_rows
from kernfed.errors import InputError
from kernfed.fusion.model import FusionModel
from kernfed.kahm.model import FoldingModel
from kernfed.kahm.projection import project
from kernfed.site.rows import check_site_rows
from kernfed.testing.evaluation import evaluate_rows, regression_rows
from kernfed.testing.influence import influence_rows
from kernfed.testing.outcomes import Evaluation, RegressionEvaluation
from kernfed.testing.predictors import is_regressor

#: Queries on which the sum of memberships is looked at; all would double the time of a report.
_CHECKED = 2000
#: What a record of traffic must say of every site and task.
TRAFFIC_KEYS = ("site", "task", "information", "messages", "bytes_down", "bytes_up", "scalars_up")


@dataclass(frozen=True)
class Evidence:
    """Everything that may be missing.

    evaluation : counts on held-out rows. alone : accuracy by the site's own machines only, on ``alone_on``. compared :
    accuracy of other methods on the same rows. labels : site -> class -> rows it was trained on, called ``labels_of``,
    where the model does not know. tested : likewise for held-out rows. winners : class -> site -> queries that this
    site decided. regression : sums of errors, for regressors. unbounded : pairs of one of ``checked`` queries and
    a machine whose memberships have no positive sum. traffic : as ``Traffic.to_json`` gives it. parts : of a fusion,
    how many labels each of its parts decided.
    """

    evaluation: Evaluation | None = None
    alone: Mapping[str, float] = field(default_factory=dict)
    alone_on: str = "its own held-out rows"
    compared: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    labels_of: str = "training rows"
    tested: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    winners: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    regression: RegressionEvaluation | None = None
    unbounded: int = 0
    checked: int = 0
    traffic: Sequence[Mapping[str, Any]] = ()
    parts: Mapping[str, int] = field(default_factory=dict)


def gather_evidence(
    model: Any, rows: Mapping[str, Any], traffic: Iterable[Mapping[str, Any]] = (), *, influence: bool = False
) -> Evidence:
    """Test ``model`` on held-out ``rows`` {site: (X, y)}, and ask who decided where it can tell.

    A personalised model is tested by every site's own predictor on the site's own rows. With ``influence`` each site
    whose machines are in the model is left out of it once.
    """
    sent = check_traffic(traffic)
    if is_regressor(model):
        return Evidence(regression=regression_rows(model, rows), traffic=sent)
    tested = evaluate_rows(model, rows)
    if influence:
        tested = replace(tested, influence=influence_rows(model, rows))
    counts = {site: count_labels(np.asarray(rows[site][1])) for site in tested.sites}
    known = Evidence(tested, tested=counts, traffic=sent)
    folding = model.folding if isinstance(model, FusionModel) else model
    if not isinstance(folding, FoldingModel):
        return known
    numbers = {site: prepared_rows(model.preparation, part[0]) for site, part in rows.items()}
    alone = {}
    for site in sorted(set(rows) & set(folding.sites)):
        own = check_site_rows(numbers[site], rows[site][1], None, site)
        if len(own.y):
            alone[site] = float((folding.local(site).predict(own.X) == own.y).mean())
    queries = np.concatenate([np.asarray(X) for X in numbers.values()])
    unbounded, checked = count_unbounded(folding, queries[:_CHECKED])
    told = replace(known, alone=alone, unbounded=unbounded, checked=checked)
    if isinstance(model, FusionModel) and model.ridge is not None:
        return replace(told, parts=Counter(model.explain(queries).part.tolist()))
    return replace(told, winners=count_winners(folding, queries))


def count_unbounded(model: FoldingModel, queries: npt.NDArray[Any]) -> tuple[int, int]:
    """Pairs of a query and a machine whose memberships have no positive sum, and how many queries were looked at.

    Where the machines are elsewhere none are.
    """
    if model.banks_ is None:
        return 0, 0
    projected = model.parameters.scaled(project(queries, model.basis))
    unbounded = sum(bank.scores(projected, model.parameters.measure).fallbacks for bank in model.banks_.values())
    return unbounded, len(queries)


def count_labels(labels: npt.NDArray[Any]) -> dict[str, int]:
    """Rows of each label, by its text."""
    names, counts = np.unique(labels, return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts, strict=True)}


def count_winners(model: FoldingModel, queries: npt.NDArray[Any]) -> dict[str, dict[str, int]]:
    """Per class that was answered, how often each site was the nearest one."""
    explained = model.explain(queries)
    pairs = Counter(zip(map(str, explained.label.tolist()), map(str, explained.site.tolist()), strict=True))
    winners: dict[str, dict[str, int]] = {str(label): {} for label in model.classes_.tolist()}
    for (label, site), count in sorted(pairs.items()):
        winners[label][site] = count
    return winners


def model_labels(model: Any) -> dict[str, dict[str, int]]:
    """Rows of each class at each site as the machines in the model tell; empty where these are elsewhere."""
    model = model.folding if isinstance(model, FusionModel) else model
    if not isinstance(model, FoldingModel) or model.banks_ is None:
        return {}
    by_site: dict[str, dict[str, int]] = {}
    for site, bank in sorted(model.banks_.items()):
        counts: Counter[str] = Counter()
        names = [str(label) for label in model.members_[site].held(model.classes_)]
        for machine, group in zip(bank.machines, bank.groups.tolist(), strict=True):
            counts[names[group]] += machine.n_rows
        by_site[site] = dict(counts)
    return by_site


def check_traffic(entries: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Entries of a record of traffic; anything else is refused."""
    listed = tuple(entries) if isinstance(entries, (list, tuple)) else (entries,)
    for entry in listed:
        if not isinstance(entry, Mapping) or not set(TRAFFIC_KEYS) <= set(entry):
            raise InputError(
                f"traffic must be a list of objects with the keys {', '.join(TRAFFIC_KEYS)}, got {entry!r}"
            )
        for name in TRAFFIC_KEYS[3:]:
            if isinstance(entry[name], bool) or not isinstance(entry[name], int) or entry[name] < 0:
                raise InputError(f"traffic: {name} must be an integer of at least 0, got {entry[name]!r}")
    return listed
