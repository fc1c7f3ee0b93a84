"""Federated kernel ridge regression: the same minimiser as on pooled rows, by few exchanges of small matrices."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernfed.errors import DivergenceWarning, SitesLost, TooFewReplies
from kernfed.federation.asking import Federation, warn_missing
from kernfed.federation.learner import Learner
from kernfed.federation.protocol.schema import check_classes
from kernfed.federation.release.kept import warn_if_forgotten
from kernfed.federation.ridge.methods import Progress, run
from kernfed.federation.ridge.options import RidgeOptions, check_options
from kernfed.federation.ridge.system import Recorder, Sites
from kernfed.federation.shares import MAX_SHARE
from kernfed.federation.survey import Bandwidth, Participants, ask_survey
from kernfed.ridge.heterogeneity import Heterogeneity
from kernfed.ridge.model import RidgeModel
from kernfed.ridge.parameters import RidgeParameters


class RidgeLearner(Learner):
    """Builds a ``RidgeModel``: mean squared loss + regularization |W|^2 over the rows of all sites.

    With an intercept the loss is that of ``W' phi(x) + a``, and a is not penalised.

    Parameters
    ----------
    method : the first three end at the minimiser on pooled rows, the others near it
        "conjugate"  conjugate gradients, preconditioned with the sites' inverse Hessians; cannot diverge
        "newton"     FedNewton Algorithm 1, the same two exchanges per round; diverges where sites differ too much
        "exact"      one exchange of M^2 numbers
        "dkrr"       average of the sites' own solutions: one exchange
        "fedavg", "fedprox"  local gradient steps and averaging, one exchange per round
    rounds : at most so many; 0 is "dkrr". tolerance : stop where the gradient is below this share of its norm at 0
    n_components, bandwidth : of the Fourier features, frequencies N(0, 1/bandwidth^2); "median" is the sites' median
        distance between rows. features="given" takes the columns of X as they are
    regularization : lambda, or several to choose from by leave-one-out over all sites (one more exchange)
    class_weight : None, "balanced" over all sites, or a weight for every label
    local_steps, learning_rate, proximal : of "fedavg" and "fedprox"; by default 2 as in FedNewton, 1 over the largest
        trace of a site's Hessian, and the regularisation. For "fedprox" the steps may be "exact": every site minimises
        its objective with the proximal term, as FedNewton's FedProx does
    fit_intercept : whether to learn a constant; None is yes, and no with ``privacy``. Its means of features and
        targets are one more exchange, except for "exact". FedNewton has none
    diagnose : measure the sites' heterogeneity, by about 40 further exchanges
    privacy : ``kernfed.privacy.RecordRidge``, with method="exact" and a given bandwidth: every site releases noisy sums
        once, without an intercept: subtract from y what you know of its mean. Few features (100, say) suffer less from
        the noise. Rows of Fourier features have norm at most 1
    """

    def __init__(
        self,
        method: str = "conjugate",
        *,
        rounds: int = 10,
        n_components: int = 2000,
        bandwidth: float | Sequence[float] | str = "median",
        regularization: float | Sequence[float] = 1e-3,
        task: str = "classify",
        class_weight: str | Mapping[Any, float] | None = None,
        features: str = "fourier",
        tolerance: float = 1e-10,
        local_steps: int | str = 2,
        learning_rate: float | None = None,
        proximal: float | None = None,
        fit_intercept: bool | None = None,
        diagnose: bool = False,
        privacy: Any = None,
    ) -> None:
        self.method = method
        self.rounds = rounds
        self.n_components = n_components
        self.bandwidth = bandwidth
        self.regularization = regularization
        self.task = task
        self.class_weight = class_weight
        self.features = features
        self.tolerance = tolerance
        self.local_steps = local_steps
        self.learning_rate = learning_rate
        self.proximal = proximal
        self.fit_intercept = fit_intercept
        self.diagnose = diagnose
        self.privacy = privacy

    def options(self) -> RidgeOptions:
        """Every parameter, checked."""
        return check_options(self.get_params(deep=False))

    def fit(
        self,
        federation: Federation,
        *,
        min_replies: int | None = None,
        timeout: float = 600.0,
        max_share: float = MAX_SHARE,
    ) -> RidgeModel:
        """Learn from all sites.

        A site lost on the way ends training with the last complete round, or, if ``min_replies`` sites remain, training
        goes on from there for the rows of those. Either way a ``MissingSites`` warning says so. A site whose sums no
        rows can have is lost, too, by name; so is one of three and more that claims above ``max_share`` of all rows.
        """
        options = self.options()
        if options.privacy is not None:
            warn_if_forgotten(federation.engine)
        taking_part = ask_survey(
            federation,
            "ridge_survey",
            options.task,
            median=options.needs_median,
            min_replies=min_replies,
            timeout=timeout,
            max_share=max_share,
        )
        columns = taking_part.schema.columns
        progress = Progress(Recorder(federation))
        _train(options, federation, taking_part, progress, timeout)
        return _model(options.method, progress, taking_part.missing, columns)


def _train(
    options: RidgeOptions, federation: Federation, taking_part: Participants, progress: Progress, timeout: float
) -> None:
    """Train, and where a site is lost go on without it, or end with the last complete round."""
    bandwidth = taking_part.bandwidth() if isinstance(options.bandwidth, str) else options.bandwidth
    while True:
        parameters = _parameters(options, taking_part, bandwidth, federation.seed)
        try:
            run(options, Sites(federation, taking_part.names, parameters, timeout, taking_part.surveys), progress)
            return
        except SitesLost as lost:
            try:
                taking_part.go_on_without(lost)
            except TooFewReplies:
                if progress.weights is None:
                    raise
                progress.stopped = "sites lost"
                return
            progress.forget_if_nothing_was_reached()


def _parameters(options: RidgeOptions, taking_part: Participants, bandwidth: Bandwidth, seed: int) -> RidgeParameters:
    """The problem of the sites that take part."""
    schema = taking_part.schema
    if options.task == "classify":
        check_classes(schema, stacklevel=5)  # to who called fit
    return options.parameters(schema, bandwidth, seed)


def _model(method: str, progress: Progress, missing: dict[str, str], columns: tuple[str, ...]) -> RidgeModel:
    """The model of what was reached, with a warning of whatever went wrong on the way."""
    assert progress.parameters is not None
    assert progress.weights is not None
    assert progress.chosen is not None
    recorder = progress.recorder
    lost = progress.stopped == "sites lost"
    how = f"training ended after round {recorder.done}" if lost else "the model is that of the others"
    warn_missing(missing, how, stacklevel=3)
    if method == "newton":
        _warn_divergence(recorder, progress.heterogeneity)
    return RidgeModel(
        replace(progress.parameters, regularization=(progress.chosen,)),
        progress.weights,
        method,
        tuple(recorder.rounds),
        progress.stopped,
        progress.heterogeneity,
        progress.path,
        missing,
        columns,
        None if progress.means is None else progress.means.intercept(progress.weights),
        progress.terms,
    )


def _warn_divergence(recorder: Recorder, heterogeneity: Heterogeneity) -> None:
    norms = [entry.gradient_norm for entry in recorder.rounds if entry.gradient_norm is not None]
    if not heterogeneity.newton_diverges and (len(norms) < 2 or norms[-1] <= norms[0]):
        return
    eigenvalue = heterogeneity.largest_eigenvalue
    known = (
        f" (the largest eigenvalue of P^-1 H is at least {eigenvalue:.3g}, and 2 is the limit)" if eigenvalue else ""
    )
    warnings.warn(
        f"newton diverges{known}: sites have few rows or differ much. The gradient went from {norms[0]:.3g} to "
        f"{norms[-1]:.3g} in {len(norms) - 1} rounds; method='conjugate' needs the same exchanges and cannot diverge",
        DivergenceWarning,
        stacklevel=4,
    )
