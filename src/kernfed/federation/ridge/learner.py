"""Federated kernel ridge regression: the same minimiser as on pooled rows, by few exchanges of small matrices."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernfed.base.median import median_by_rows
from kernfed.base.prior import Prior, weighted_shares
from kernfed.base.warn import warn
from kernfed.errors import DivergenceWarning, SitesLost, TooFewReplies, UnprotectedClasses
from kernfed.federation.asking import Federation, warn_missing
from kernfed.federation.learner import Learner
from kernfed.federation.program import Program
from kernfed.federation.ridge.choice import Width, choose_width
from kernfed.federation.ridge.methods import Progress, run
from kernfed.federation.ridge.options import RidgeOptions, check_options
from kernfed.federation.ridge.pooling import check_majority, counted_classes, counted_rows
from kernfed.federation.ridge.system import Recorder, Sites
from kernfed.federation.survey import MAX_SHARE, Bandwidth, Participants, ask_survey
from kernfed.ridge.heterogeneity import Heterogeneity
from kernfed.ridge.model import RidgeModel
from kernfed.ridge.parameters import RidgeChoices, RidgeParameters
from kernfed.site.protocol.schema import check_classes
from kernfed.site.release.kept import warn_if_forgotten


class RidgeLearner(Learner):
    """Builds a ``RidgeModel``: mean squared loss + regularization |W|^2 over the rows of all sites.

    With an intercept the loss is that of ``W' phi(x) + a``, and a is not penalised.

    Parameters
    ----------
    method : the first three end at the minimiser on pooled rows, the others near it
        "exact"      one exchange of M^2 numbers, and a few more to choose what is "auto"
        "conjugate"  conjugate gradients, preconditioned with the sites' inverse Hessians; cannot diverge
        "newton"     FedNewton Algorithm 1, the same two exchanges per round; diverges where sites differ too much
        "dkrr"       average of the sites' own solutions: one exchange
    head : "squared", or with "exact" to classify "logistic": from the squared solution on, gradients of the logistic
        loss, one exchange of M C numbers each
    rounds : at most so many, 10 (30 for "logistic") unless given; 0 is "dkrr", or the squared head. tolerance : stop
        where the gradient is below this share of its norm at 0
    n_components : of the Fourier features; "auto" is 2000, and at most twice the rows. features="given" takes the
        columns of X as they are
    bandwidth : of the Fourier features, frequencies N(0, 1/bandwidth^2); "median" is the sites' median distance between
        rows, "auto" the best of four multiples of it by leave-one-out with 500 features (the median in rounds)
    regularization : lambda, or several to choose from by leave-one-out over all sites. "auto" takes them on a wide grid
        around ``tr(C) / n``. For labels the likelihood decides, for values the squared error. With
        "exact" it is that of the pooled solution, for which sites see the sum of all second moments; in rounds that of
        the sites' averages; with ``privacy`` ``tr(C) / n`` of the released sums
    scale : what columns are divided by where something is chosen by leave-one-out. "columns": each by its spread,
        "entries" or None: all by one number; "auto" takes the better one
    class_weight : None, "balanced" over all sites, or a weight for every label
    fit_intercept : whether to learn a constant; None is yes, and no with ``privacy``. Its means of features and
        targets are one more exchange, except for "exact". FedNewton has none
    diagnose : measure the sites' heterogeneity, by about 40 further exchanges
    privacy : ``kernfed.privacy.RecordRidge``, with method="exact" and a given bandwidth: every site releases noisy sums
        once, without an intercept: subtract from y what you know of its mean. Few features (100, say) suffer less from
        the noise. Rows of Fourier features have norm at most 1
    sum : "secure" or a ``kernfed.secure.Committee``: with method="exact" sites add up their sums under masks, and
        nobody sees any site's own; with ``privacy`` the noise of one release is added by all of them together. The
        bandwidth is then the median or given, the regularisation that of the sums; rows, classes and medians are
        surveyed as ever
    aggregate : "sum", under which one wrong site moves the model as far as it likes, or with method="exact" "median":
        no site weighs more than 1.5 times the median one, it counts the less the farther it is from most, and choices
        are those of the median site (``kernfed.ridge.robust``). Needs three sites; a class that fewer hold is not
        protected, ``model.unprotected_``
    """

    def __init__(
        self,
        method: str = "exact",
        *,
        head: str = "squared",
        rounds: int | None = None,
        n_components: int | str = "auto",
        bandwidth: float | Sequence[float] | str = "auto",
        regularization: float | Sequence[float] | str = "auto",
        task: str = "classify",
        class_weight: str | Mapping[Any, float] | None = None,
        features: str = "fourier",
        scale: str | None = "auto",
        tolerance: float = 1e-10,
        fit_intercept: bool | None = None,
        diagnose: bool = False,
        privacy: Any = None,
        sum: Any = None,
        aggregate: str = "sum",
    ) -> None:
        self.method = method
        self.head = head
        self.rounds = rounds
        self.n_components = n_components
        self.bandwidth = bandwidth
        self.regularization = regularization
        self.task = task
        self.class_weight = class_weight
        self.features = features
        self.scale = scale
        self.tolerance = tolerance
        self.fit_intercept = fit_intercept
        self.diagnose = diagnose
        self.privacy = privacy
        self.sum = sum
        self.aggregate = aggregate

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
        return self.fit_with_sums(federation, min_replies=min_replies, timeout=timeout, max_share=max_share)[0]

    def fit_with_sums(
        self,
        federation: Federation,
        *,
        min_replies: int | None = None,
        timeout: float = 600.0,
        max_share: float = MAX_SHARE,
    ) -> tuple[RidgeModel, Progress]:
        """As ``fit``, with all that it learned on the way: a fusion weighs the head by its sums."""
        program = self.program(federation, min_replies=min_replies, timeout=timeout, max_share=max_share)
        return federation.run(program, timeout=timeout)

    def program(
        self,
        federation: Federation,
        *,
        min_replies: int | None = None,
        timeout: float = 600.0,
        max_share: float = MAX_SHARE,
    ) -> Program[tuple[RidgeModel, Progress]]:
        """What ``fit_with_sums`` asks, as a program; ``timeout`` is that of rounds, which share no exchange."""
        options = self.options()
        if options.privacy is not None:
            warn_if_forgotten(federation.engine)
        taking_part = yield from ask_survey(
            "ridge_survey",
            options.task,
            seed=federation.seed,
            median=options.needs_median,
            min_replies=min_replies,
            max_share=max_share,
        )
        columns = taking_part.schema.columns
        progress = Progress(Recorder())
        progress.choices = RidgeChoices(balanced=options.class_weight == "balanced", aggregate=options.aggregate)
        yield from _train(options, federation, taking_part, progress, timeout)
        model = _model(options, progress, taking_part.missing, columns)
        return replace(model, preparation=federation.preparation), progress


def _train(
    options: RidgeOptions, federation: Federation, taking_part: Participants, progress: Progress, timeout: float
) -> Program[None]:
    """Train, and where a site is lost go on without it, or end with the last complete round."""
    components = options.components(sum(survey.rows for survey in taking_part.surveys.values()))
    median = _median_distance(options, taking_part) if options.needs_median else 1.0
    width: Width | None = None
    while True:
        check_majority(taking_part.names, options.aggregate)
        first = median if width is None else width.bandwidth
        parameters = _parameters(options, taking_part, first, components, federation.seed)
        sites = Sites(
            federation,
            taking_part.names,
            parameters,
            timeout,
            taking_part.surveys,
            progress.recorder.meter,
            aggregate=options.aggregate,
        )
        try:
            if width is None:
                width = yield from choose_width(options, sites, median)
                progress.choices = replace(
                    progress.choices, bandwidth=width.how, scale=width.scale, widths=dict(width.tried or {})
                )
                sites = replace(sites, parameters=replace(parameters, bandwidth=width.bandwidth))
            yield from run(options, sites, progress)
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


def _median_distance(options: RidgeOptions, taking_part: Participants) -> float:
    """Median of the sites' median distances by the rows that they count with; 1 where no site told one."""
    rows = counted_rows(taking_part.surveys, options.aggregate)
    return median_by_rows((own.median, rows[site]) for site, own in taking_part.surveys.items() if own.median > 0)


def _parameters(
    options: RidgeOptions, taking_part: Participants, bandwidth: Bandwidth, components: int, seed: int
) -> RidgeParameters:
    """The problem of the sites that take part."""
    schema = taking_part.schema
    if options.task == "classify":
        check_classes(schema)
        schema = replace(schema, counts=counted_classes(schema.classes, taking_part.surveys, options.aggregate))
    return options.parameters(schema, bandwidth, components, seed)


def _model(options: RidgeOptions, progress: Progress, missing: dict[str, str], columns: tuple[str, ...]) -> RidgeModel:
    """The model of what was reached, with a warning of whatever went wrong on the way."""
    assert progress.parameters is not None
    assert progress.weights is not None
    assert progress.chosen is not None
    recorder = progress.recorder
    lost = progress.stopped == "sites lost"
    how = f"training ended after round {recorder.done}" if lost else "the model is that of the others"
    warn_missing(missing, how)
    if options.method == "newton":
        _warn_divergence(recorder, progress.heterogeneity)
    model = RidgeModel(
        replace(progress.parameters, regularization=(progress.chosen,)),
        progress.weights,
        options.method,
        tuple(recorder.rounds),
        progress.stopped,
        progress.heterogeneity,
        progress.path,
        missing,
        columns,
        None if progress.means is None else progress.means.intercept(progress.weights),
        progress.terms,
        options.head,
        progress.temperature,
        progress.counts,
        _made_for(progress, options),
        replace(progress.choices, exchanges=recorder.exchanges),
        range_=progress.range,
    )
    exposed = model.exposure()
    if exposed is not None:
        warn(f"{exposed}; model.unprotected_ lists them", UnprotectedClasses)
    return model


def _made_for(progress: Progress, options: RidgeOptions) -> Prior:
    """The shares of classes that the scores are for, so that a model answers as it was weighed to answer."""
    assert progress.parameters is not None
    weights = progress.parameters.class_weights
    if weights is None:
        return "training"
    if options.class_weight == "balanced":
        return "uniform"
    shares = weighted_shares(progress.counts, weights)
    return None if shares is None else dict(zip(progress.parameters.classes, shares.tolist(), strict=True))


def _warn_divergence(recorder: Recorder, heterogeneity: Heterogeneity) -> None:
    norms = [entry.gradient_norm for entry in recorder.rounds if entry.gradient_norm is not None]
    if not heterogeneity.newton_diverges and (len(norms) < 2 or norms[-1] <= norms[0]):
        return
    eigenvalue = heterogeneity.largest_eigenvalue
    known = (
        f" (the largest eigenvalue of P^-1 H is at least {eigenvalue:.3g}, and 2 is the limit)" if eigenvalue else ""
    )
    warn(
        f"newton diverges{known}: sites have few rows or differ much. The gradient went from {norms[0]:.3g} to "
        f"{norms[-1]:.3g} in {len(norms) - 1} rounds; method='conjugate' needs the same exchanges and cannot diverge",
        DivergenceWarning,
    )
