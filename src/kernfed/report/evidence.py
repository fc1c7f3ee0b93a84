"""What is known of a model beside the model itself: how it did on rows it had not seen, who decided, what travelled."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.model import Model, as_model
from kernfed.data.preparation import prepared_rows
from kernfed.errors import InputError
from kernfed.guarantees import HeldOutBounds, heldout_bounds
from kernfed.kahm.members import project
from kernfed.kahm.model import FoldingModel
from kernfed.site.rows import check_site_rows
from kernfed.testing.evaluation import evaluate_rows, regression_rows
from kernfed.testing.influence import influence_rows
from kernfed.testing.outcomes import Evaluation, RegressionEvaluation

#: Queries on which the sum of memberships is looked at; all would double the time of a report.
_CHECKED = 2000
#: Confidence of all held-out bounds of a report together.
CONFIDENCE = 0.95
#: What a record of traffic must say of every site and task.
TRAFFIC_KEYS = ("site", "task", "information", "messages", "bytes_down", "bytes_up", "scalars_up")


@dataclass(frozen=True)
class Evidence:
    """Everything that may be missing.

    evaluation : counts on held-out rows. alone : accuracy by the machines of the site only, on ``alone_on``. compared :
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

    A personalised model is tested by the predictor of every site on the rows of that site. With ``influence`` each site
    whose machines are in the model is left out of it once.
    """
    asked, sent = as_model(model), check_traffic(traffic)
    if not asked.is_classifier:
        return Evidence(regression=regression_rows(model, rows), traffic=sent)
    tested = evaluate_rows(model, rows)
    if influence:
        tested = replace(tested, influence=influence_rows(model, rows))
    counts = {site: count_labels(np.asarray(rows[site][1])) for site in tested.sites}
    known = Evidence(tested, tested=counts, traffic=sent)
    folding = asked.folding
    if folding is None:
        return known
    numbers = {site: prepared_rows(asked.preparation, part[0]) for site, part in rows.items()}
    alone = {}
    for site in sorted(set(rows) & set(folding.sites)):
        held = check_site_rows(numbers[site], rows[site][1], None, site)
        if len(held.y):
            alone[site] = float((folding.local(site).predict(held.X) == held.y).mean())
    queries = np.concatenate([np.asarray(X) for X in numbers.values()])
    unbounded, checked = count_unbounded(folding, queries[:_CHECKED])
    known = replace(known, alone=alone, unbounded=unbounded, checked=checked)
    if asked.ridge is not None:  # a head beside the machines
        return replace(known, parts=Counter(asked.explain(queries).part.tolist()))
    return replace(known, winners=count_winners(folding, queries))


def all_bounds(evaluation: Evaluation) -> HeldOutBounds:
    """Bounds of every site and of all together, which hold at once with ``CONFIDENCE``."""
    counts = {site: (outcome.rows - outcome.correct, outcome.rows) for site, outcome in evaluation.sites.items()}
    return heldout_bounds(counts, CONFIDENCE, simultaneous=True)


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
    """How many rows each label has, by the text of the label."""
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


def model_labels(model: Model) -> dict[str, dict[str, int]]:
    """Rows of each class at each site by the machines in the model; empty where these are elsewhere."""
    machines = model.folding
    if machines is None or machines.banks_ is None:
        return {}
    by_site: dict[str, dict[str, int]] = {}
    for site, bank in sorted(machines.banks_.items()):
        counts: Counter[str] = Counter()
        names = [str(label) for label in machines.members_[site].held(machines.classes_)]
        for machine, group in zip(bank.machines, bank.groups.tolist(), strict=True):
            counts[names[group]] += machine.n_rows
        by_site[site] = dict(counts)
    return by_site


def check_traffic(
    entries: Iterable[Mapping[str, Any]], keys: Sequence[str] = TRAFFIC_KEYS
) -> tuple[Mapping[str, Any], ...]:
    """Entries of a record of traffic, each with these ``keys``, names first and counts from the fourth on."""
    listed = tuple(entries) if isinstance(entries, (list, tuple)) else (entries,)
    for entry in listed:
        if not isinstance(entry, Mapping) or not set(keys) <= set(entry):
            raise InputError(f"traffic must be a list of objects with the keys {', '.join(keys)}, got {entry!r}")
        for name in keys[3:]:
            if isinstance(entry[name], bool) or not isinstance(entry[name], int) or entry[name] < 0:
                raise InputError(f"traffic: {name} must be an integer of at least 0, got {entry[name]!r}")
    return listed
