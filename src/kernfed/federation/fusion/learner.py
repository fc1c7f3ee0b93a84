"""Machines and a head in one fit: what each would learn alone, and the weight between them."""

from dataclasses import replace
from typing import Any

from kernfed.base.checks import check_choice, check_number
from kernfed.errors import InputError, KernfedError
from kernfed.federation.asking import Federation
from kernfed.federation.folding.learner import HOLDS, FoldingLearner
from kernfed.federation.fusion.connection import FusionConnection
from kernfed.federation.fusion.released import released_head
from kernfed.federation.fusion.weighing import choose_visit, choose_weight, weigh
from kernfed.federation.learner import Learner
from kernfed.federation.ridge.learner import RidgeLearner
from kernfed.federation.ridge.methods import Progress
from kernfed.fusion.model import FusionModel
from kernfed.fusion.parts import VISITS
from kernfed.ridge.model import RidgeModel

TASKS = ("classify", "regress")


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
        folding, ridge = self.parts()
        before = _asked(federation)
        if self.task == "regress":
            head, _ = ridge.fit_with_sums(federation, min_replies=min_replies, timeout=timeout)
            return FusionModel(
                None, _timeless(head), prior=head.prior, missing_=head.missing_, exchanges_=_asked(federation) - before
            )
        machines = folding.fit(federation, min_replies=min_replies, timeout=timeout)
        if self.privacy is not None:
            model = released_head(federation, machines, ridge, None if self.weight == "auto" else float(self.weight))
        else:
            model = self._with_head(federation, FusionModel(machines, None, missing_=machines.missing_), ridge, timeout)
        exchanges = _asked(federation) - before
        return replace(model, exchanges_=exchanges, fused=FusionConnection(federation, self))

    def _with_head(
        self, federation: Federation, model: FusionModel, ridge: RidgeLearner, timeout: float
    ) -> FusionModel:
        """The model with the head of all sites that allow sums, and the weight of both."""
        machines = model.folding
        assert machines is not None
        try:
            head, fitted = ridge.fit_with_sums(federation.only(machines.sites), min_replies=1, timeout=timeout)
        except KernfedError as error:
            reasons = getattr(error, "missing", {})
            told = {site: refusal.reason for site, refusal in reasons.items()}
            if len(told) < len(machines.sites):  # something else than that nobody allows sums
                raise
            return replace(model, headless_=told, temperature_=machines.temperature_)
        model = replace(model, ridge=_timeless(head), headless_=dict(head.missing_), prior=head.prior)
        return self.weighed(federation, model, fitted, timeout)

    def weighed(self, federation: Federation, model: FusionModel, fitted: Progress, timeout: float) -> FusionModel:
        """The model with weight and temperature, and with which queries travel."""
        machines, head = model.folding, model.ridge
        assert machines is not None
        assert isinstance(head, RidgeModel)
        weighing = weigh(federation, machines, head, fitted, timeout)
        given = None if self.weight == "auto" else float(self.weight)
        weight, temperature, choice = choose_weight(weighing, given, head)
        model = replace(model, weight_=weight, temperature_=temperature, choice_=choice)
        return replace(model, visit_=choose_visit(weighing, model)) if self.visit == "unsure" else model


def _timeless(head: RidgeModel) -> RidgeModel:
    """The head without how long its rounds took, so that the same rows give the same file."""
    return replace(head, history_=tuple(replace(entry, seconds=0.0) for entry in head.history_))


def _asked(federation: Federation) -> int:
    """Exchanges so far: questions to the site that was asked most often."""
    counts: dict[str, int] = {}
    for entry in federation.traffic:
        counts[entry.site] = counts.get(entry.site, 0) + entry.messages
    return max(counts.values(), default=0)
