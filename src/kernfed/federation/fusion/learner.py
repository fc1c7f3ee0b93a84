"""Machines and a head in one fit, and what a fusion does with the federation behind it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernfed.base.checks import check_choice, check_number
from kernfed.errors import InputError, KernfedError, SitesLost, TooFewReplies
from kernfed.federation.asking import Federation
from kernfed.federation.folding.connection import connect_folding
from kernfed.federation.folding.learner import HOLDS, FoldingLearner
from kernfed.federation.folding.questions import collect_machines
from kernfed.federation.fusion.weighing import (
    LeftOut,
    choose_visit,
    choose_weight,
    usual_weight,
    weigh,
    with_left_out_rows,
)
from kernfed.federation.learner import Learner
from kernfed.federation.program import Program, together
from kernfed.federation.ridge.learner import RidgeLearner
from kernfed.federation.ridge.methods import Progress
from kernfed.fusion.model import FusionModel
from kernfed.fusion.parts import VISITS
from kernfed.kahm.bank import Bank
from kernfed.kahm.machine import recover_rows
from kernfed.kahm.model import FoldingModel
from kernfed.ridge.model import RidgeModel


def released_head(
    federation: Federation, machines: FoldingModel, ridge: RidgeLearner, weight: float | None
) -> FusionModel:
    """Machines of released rows with a head of the same rows; the usual weight unless one is given."""
    banks = machines.banks_
    lost: dict[str, str] = {}
    if banks is None:
        banks, lost = federation.run(collect_machines(machines, machines.sites, min_replies=0))
    model = FusionModel(machines, None, missing_=machines.missing_)
    if not banks:
        return replace(model, headless_=lost, temperature_=machines.temperature_)
    released = {site: _rows_of(machines, site, bank) for site, bank in banks.items()}
    with Federation.local(released, seed=federation.seed) as local:
        head = ridge.fit(local)
    head = replace(head, privacy=machines.privacy)
    chosen, temperature, choice = usual_weight(weight, head)
    return replace(model, ridge=head, weight_=chosen, temperature_=temperature, choice_=choice, headless_=dict(lost))


def _rows_of(machines: FoldingModel, site: str, bank: Bank) -> tuple[Any, Any]:
    """Rows that a site's machines contain, in the units of queries, and their labels."""
    labels = np.asarray(machines.members_[site].held(machines.classes_))
    scale = machines.parameters.scale
    rows = [recover_rows(machine) for machine in bank.machines]
    rows = rows if scale is None else [scale.restore(own) for own in rows]
    y = np.repeat(labels[bank.groups], [len(own) for own in rows])
    return np.concatenate(rows), y


@dataclass(frozen=True)
class FusionConnection:
    """Changes a ``FusionModel`` with the sites of a federation; ``learner`` is what made it, where that is known."""

    federation: Federation
    learner: Any = None

    def forget(self, model: FusionModel, site: str, rows: Sequence[int] | None, *, rechoose: bool) -> FusionModel:
        """Both parts without ``site``, or without some of its rows; machines first, which deletes the rows there."""
        machines = _machines(model).forget(site, rows)
        if rechoose:
            if self.learner is None:
                raise InputError("a model from a file does not know its learner: forget, then fit a FusionLearner anew")
            return self._rechosen(machines)
        return self._again(model, machines)

    def add_site(self, model: FusionModel, site: str, data: Any) -> FusionModel:
        """Both parts with another site."""
        return self._again(model, _machines(model).add_site(site, data))

    def add_rows(self, model: FusionModel, site: str, X: Any, y: Any, ids: Any) -> FusionModel:
        """Both parts with further rows at a site."""
        return self._again(model, _machines(model).add_rows(site, X, y, ids))

    def _again(self, model: FusionModel, machines: FoldingModel) -> FusionModel:
        """The head of the sites that have machines now, with the choices that the model recorded."""
        if model.privacy is not None:
            raise InputError("the head of a private fusion is made of what was released then; fit the learner again")
        if model.ridge is None:
            return replace(model, folding=machines, conformal_=None)
        taking_part = self.federation.only([site for site in machines.sites if site not in model.headless_])
        head = recorded_learner(model.ridge).fit(taking_part)
        head = replace(head, temperature_=model.ridge.temperature_, prior=model.ridge.prior)
        exchanges, holders = head.choices_.exchanges, head.choices_.holders
        head = replace(head, choices_=replace(model.ridge.choices_, exchanges=exchanges, holders=holders))
        return replace(model, folding=machines, ridge=head, conformal_=None)

    def _rechosen(self, machines: FoldingModel) -> FusionModel:
        assert self.learner is not None
        fitted: FusionModel = self.learner.fit(self.federation.only(machines.sites))
        return replace(fitted, fused=self)


def _machines(model: FusionModel) -> FoldingModel:
    if model.folding is None:
        raise InputError("this model is a head alone: fit the learner again without these rows")
    return model.folding


def recorded_learner(head: RidgeModel) -> RidgeLearner:
    """The learner that makes ``head`` again from other rows: every choice is the one that was recorded."""
    p, choices = head.parameters, head.choices_
    weights: Any = None
    if p.class_weights is not None:
        weights = "balanced" if choices.balanced else dict(zip(p.classes, p.class_weights, strict=True))
    return RidgeLearner(
        head.method,
        rounds=max(10, len(head.history_)),
        n_components=p.n_components,
        bandwidth=p.bandwidth,
        regularization=head.regularization_,
        task=p.task,
        class_weight=weights,
        features=p.features,
        head=head.head,
        scale=choices.scale if p.features == "given" else None,
        fit_intercept=p.fit_intercept,
        aggregate=choices.aggregate,
    )


def connect_fusion(federation: Federation, model: FusionModel) -> FusionModel:
    """The model answered by the sites of a federation."""
    machines = model.folding
    if machines is not None:
        machines = connect_folding(federation, machines)
    return replace(model, folding=machines, fused=FusionConnection(federation))


TASKS = ("classify", "regress")
#: A head with the sums that it was made of, or why nobody could make one.
Head = tuple[RidgeModel, Progress] | TooFewReplies | SitesLost


class FusionLearner(Learner):
    """Builds a ``FusionModel``: machines at the sites and a head of all rows, weighed by rows that neither saw.

    Parameters
    ----------
    folding : a ``FoldingLearner``, None for its defaults. Its ``hold`` and ``privacy`` are those of the fusion
    ridge : a ``RidgeLearner``, None for its defaults. A site whose policy does not allow sums is left out of the head,
        by name; where none allows them the model is machines alone, and says so
    weight : "auto", or c of ``kernfed.fusion.combination``. "auto" lets some training rows of every site travel as
        queries, without their labels (task "fusion_sample", which a policy must allow); sites count the losses
        themselves. Where none lets rows travel c is 1
    visit : "always", or "unsure": the head answers alone where it is sure enough, so that such a query visits no site.
        How many travel and what is given up is measured on the same rows
    hold : "sites" or "machines", as in ``FoldingLearner``
    task : "classify", or "regress", where the head answers alone
    privacy : a mechanism of ``FoldingLearner``: sites release once, and machines, head and weight are all made of that,
        so the whole model costs one epsilon. labels, smoothing, fabricate and rows are set in ``folding``
    sum : "secure" or a ``kernfed.secure.Committee``: sites add up the sums of the head under masks; with ``privacy``,
        which must then be a ``RecordMoments``, the moments that everything is made of
    """

    def __init__(
        self,
        folding: FoldingLearner | None = None,
        ridge: RidgeLearner | None = None,
        *,
        weight: float | str = "auto",
        visit: str = "always",
        hold: str = "sites",
        task: str = "classify",
        privacy: Any = None,
        sum: Any = None,
    ) -> None:
        self.folding = folding
        self.ridge = ridge
        self.weight = weight
        self.visit = visit
        self.hold = hold
        self.task = task
        self.privacy = privacy
        self.sum = sum

    def parts(self) -> tuple[FoldingLearner, RidgeLearner]:
        """Both learners, checked, as the fusion uses them."""
        folding = FoldingLearner() if self.folding is None else self.folding
        ridge = RidgeLearner() if self.ridge is None else self.ridge
        if not isinstance(folding, FoldingLearner) or not isinstance(ridge, RidgeLearner):
            raise InputError(
                f"folding must be a FoldingLearner and ridge a RidgeLearner, got {type(folding).__name__} and "
                f"{type(ridge).__name__}"
            )
        if folding.privacy is not None or ridge.privacy is not None:
            raise InputError(
                "the parts of a fusion have no privacy of their own: give it to FusionLearner(privacy=...)"
            )
        check_choice(self.hold, "hold", HOLDS)
        check_choice(self.visit, "visit", VISITS)
        check_choice(self.task, "task", TASKS)
        if self.weight != "auto":
            check_number(self.weight, "weight", at_least=0)
        if folding.sum is not None or ridge.sum is not None:
            raise InputError("the parts of a fusion do not choose how sums are made: give it to FusionLearner(sum=...)")
        released = self.privacy is not None
        own = {"hold": self.hold, "privacy": self.privacy, "sum": self.sum if released else None}
        head = {"task": self.task, "sum": None if released else self.sum}
        return (
            FoldingLearner(**{**folding.get_params(deep=False), **own}),
            RidgeLearner(**{**ridge.get_params(deep=False), **head}),
        )

    def fit(self, federation: Federation, *, min_replies: int | None = None, timeout: float = 600.0) -> FusionModel:
        """Learn from all sites. ``min_replies`` is for the machines; the head takes whoever allows sums."""
        before = federation.traffic.exchanges
        model = federation.run(self.program(federation, min_replies=min_replies, timeout=timeout), timeout=timeout)
        exchanges = federation.traffic.exchanges - before
        if model.folding is None:
            return replace(model, exchanges_=exchanges)
        return replace(model, exchanges_=exchanges, fused=FusionConnection(federation, self))

    def program(
        self, federation: Federation, *, min_replies: int | None = None, timeout: float = 600.0
    ) -> Program[FusionModel]:
        """What ``fit`` asks, as a program: machines and head share their exchanges, and so do left-out rows."""
        folding, ridge = self.parts()
        if self.task == "regress":
            head, _ = yield from ridge.program(federation, min_replies=min_replies, timeout=timeout)
            return FusionModel(None, _timeless(head), prior=head.prior, missing_=head.missing_)
        machines_of_sites = folding.program(federation, min_replies=min_replies)
        given = None if self.weight == "auto" else float(self.weight)
        if self.privacy is not None:
            return released_head(federation, (yield from machines_of_sites), ridge, given)
        failed: list[KernfedError] = []
        (machines, sample), fitted = yield from together(
            with_left_out_rows(machines_of_sites, wanted=lambda: not failed),
            _if_allowed(ridge.program(federation, min_replies=1, timeout=timeout), failed),
        )
        if not _within(fitted, federation, machines):
            # A site was lost between its sums and its machines: the head is made again of those that have both.
            only = federation.only(machines.sites)
            again = only.run(_if_allowed(ridge.program(only, min_replies=1, timeout=timeout), []), timeout=timeout)
            return (yield from self._with_head(machines, again, sample))
        return (yield from self._with_head(machines, fitted, sample))

    def _with_head(self, machines: FoldingModel, fitted: Head, sample: LeftOut | None) -> Program[FusionModel]:
        """The model with the head of all sites that allow sums, and the weight of both."""
        model = FusionModel(machines, None, missing_=machines.missing_)
        if isinstance(fitted, KernfedError):
            reasons = {site: refusal.reason for site, refusal in getattr(fitted, "missing", {}).items()}
            if not set(machines.sites) <= set(reasons):  # something else than that nobody allows sums
                raise fitted
            return replace(model, headless_=reasons, temperature_=machines.temperature_)
        head, progress = fitted
        model = replace(model, ridge=_timeless(head), headless_=dict(head.missing_), prior=head.prior)
        weighing = None if sample is None else weigh(sample, machines, head, progress)
        given = None if self.weight == "auto" else float(self.weight)
        weight, temperature, choice = yield from choose_weight(weighing, given, head)
        model = replace(model, weight_=weight, temperature_=temperature, choice_=choice)
        if self.visit != "unsure":
            return model
        return replace(model, visit_=(yield from choose_visit(weighing, model)))


def _if_allowed(program: Program[tuple[RidgeModel, Progress]], failed: list[KernfedError]) -> Program[Head]:
    """The head, or the error that left nobody to make one, which is then in ``failed`` too."""
    try:
        return (yield from program)
    except (TooFewReplies, SitesLost) as error:
        failed.append(error)
        return error


def _within(fitted: Head, federation: Federation, machines: FoldingModel) -> bool:
    """Whether every site of the head has machines."""
    if isinstance(fitted, KernfedError):
        return True
    return set(federation.sites) - set(fitted[0].missing_) <= set(machines.sites)


def _timeless(head: RidgeModel) -> RidgeModel:
    """The head without how long its rounds took, so that the same rows give the same file."""
    return replace(head, history_=tuple(replace(entry, seconds=0.0) for entry in head.history_))
