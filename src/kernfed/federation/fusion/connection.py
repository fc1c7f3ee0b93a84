"""What a ``FusionModel`` does with the federation behind it: forget and take in sites and rows, by recorded choices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernfed.errors import InputError
from kernfed.federation.asking import Federation
from kernfed.federation.folding.connection import connect_folding
from kernfed.federation.ridge.learner import RidgeLearner
from kernfed.fusion.model import FusionModel
from kernfed.kahm.model import FoldingModel
from kernfed.ridge.model import RidgeModel


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
