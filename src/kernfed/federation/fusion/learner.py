"""Machines and a head in one fit: what each would learn alone, and the weight between them."""

from dataclasses import replace
from typing import Any

from kernfed.base.checks import check_choice, check_number
from kernfed.errors import InputError, KernfedError, SitesLost, TooFewReplies
from kernfed.federation.asking import Federation
from kernfed.federation.folding.learner import HOLDS, FoldingLearner
from kernfed.federation.fusion.connection import FusionConnection
from kernfed.federation.fusion.released import released_head
from kernfed.federation.fusion.weighing import LeftOut, choose_visit, choose_weight, weigh, with_left_out_rows
from kernfed.federation.learner import Learner
from kernfed.federation.program import Program, together
from kernfed.federation.ridge.learner import RidgeLearner
from kernfed.federation.ridge.methods import Progress
from kernfed.fusion.model import FusionModel
from kernfed.fusion.parts import VISITS
from kernfed.kahm.model import FoldingModel
from kernfed.ridge.model import RidgeModel

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
