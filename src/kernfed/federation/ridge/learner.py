"""Federated kernel ridge regression: the same minimiser as on pooled rows, by few exchanges of small matrices."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kernfed._median import median_by_rows
from kernfed._validation import FloatArray, check_choice, check_count, check_number
from kernfed.errors import DivergenceWarning, InputError, MissingSites, SitesLost, TooFewReplies
from kernfed.federation.asking import Federation, warn_missing
from kernfed.federation.learner import Learner
from kernfed.federation.protocol.schema import agree, check_classes
from kernfed.federation.release.kept import warn_if_forgotten
from kernfed.federation.ridge.system import Recorder, RidgeSystem, Sites, SiteSurvey, ask_survey
from kernfed.files import register_later
from kernfed.kahm.terms import Terms
from kernfed.ridge.conjugate import conjugate_step, start_conjugate
from kernfed.ridge.exact import minimise
from kernfed.ridge.heterogeneity import Heterogeneity, measure_heterogeneity
from kernfed.ridge.means import Means
from kernfed.ridge.model import METHODS, RidgeModel
from kernfed.ridge.newton import newton_step, start_newton
from kernfed.ridge.objective import diverged
from kernfed.ridge.parameters import FEATURES, TASKS, RidgeParameters, check_flag, check_path

ClassWeight = str | Mapping[Any, float] | None
register_later("kernfed.federation.ridge.private")  # the format of models made of released sums


@dataclass
class _Progress:
    """What a fit has so far; where a site is lost, others go on from here.

    ``parameters`` are those of ``weights``, and ``means`` those of the rows they are fitted to, for an intercept.
    """

    recorder: Recorder
    names: tuple[str, ...]
    missing: dict[str, str]
    parameters: RidgeParameters | None = None
    weights: FloatArray | None = None
    means: Means | None = None
    stopped: str = "rounds"
    heterogeneity: Heterogeneity = field(default_factory=Heterogeneity)
    path: dict[float, float] = field(default_factory=dict)
    chosen: float | None = None
    terms: Terms | None = None

    def begin(self, system: RidgeSystem) -> FloatArray:
        """Where to start: the average of the local solutions, or where all were when a site was lost."""
        parameters = system.sites.parameters
        if self.weights is None or self.parameters is None:
            self.weights = system.mean_solutions()[system.position]
        elif parameters.task == "classify":
            self.weights = self.weights[:, [self.parameters.classes.index(label) for label in parameters.classes]]
        self.parameters, self.means = parameters, system.sites.means
        return self.weights


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
    intercept : whether to learn a constant; by default yes, and no with ``privacy``. Its means of features and targets
        are one more exchange, except for "exact". FedNewton has none
    diagnose : measure the sites' heterogeneity, by about 40 further exchanges
    privacy : ``kernfed.privacy.RecordRidge``, with method="exact" and a given bandwidth: every site releases noisy sums
        once, without an intercept: subtract from y what you know of its mean. Few features (100, say) suffer less from
        the noise. Rows of Fourier features have norm at most 1
    """

    def __init__(
        self,
        method: str = "conjugate",
        rounds: int = 10,
        n_components: int = 2000,
        bandwidth: float | Sequence[float] | str = "median",
        regularization: float | Sequence[float] = 1e-3,
        task: str = "classify",
        class_weight: ClassWeight = None,
        features: str = "fourier",
        privacy: Any = None,
        *,
        tolerance: float = 1e-10,
        local_steps: int | str = 2,
        learning_rate: float | None = None,
        proximal: float | None = None,
        diagnose: bool = False,
        intercept: bool | None = None,
    ) -> None:
        self.method = check_choice(method, "method", METHODS)
        self.rounds = check_count(rounds, "rounds", at_least=0)
        self.n_components = check_count(n_components, "n_components")
        self.bandwidth = _check_bandwidth(bandwidth)
        self.regularization = check_path(regularization)
        self.task = check_choice(task, "task", TASKS)
        self.class_weight = _check_class_weight(class_weight, task)
        self.features = check_choice(features, "features", FEATURES)
        self.tolerance = check_number(tolerance, "tolerance", at_least=0)
        self.local_steps = _check_local_steps(local_steps, method, learning_rate)
        self.learning_rate = None if learning_rate is None else check_number(learning_rate, "learning_rate", above=0)
        if proximal is not None and method != "fedprox":
            raise InputError(f"proximal is for method='fedprox', got {proximal!r} with method={method!r}")
        self.proximal = None if proximal is None else check_number(proximal, "proximal", at_least=0)
        self.diagnose = bool(diagnose)
        self.intercept = privacy is None if intercept is None else check_flag(intercept, "intercept")
        self.privacy = None
        if privacy is not None:
            from kernfed.federation.ridge.private import check_private_ridge  # slow to import, and only needed here

            self.privacy = check_private_ridge(
                privacy,
                method,
                bandwidth,
                features,
                len(self.regularization),
                class_weight,
                self.diagnose,
                self.intercept,
            )

    def fit(self, federation: Federation, *, min_replies: int | None = None, timeout: float = 600.0) -> RidgeModel:
        """Learn from all sites.

        A site lost on the way ends training with the last complete round, or, if ``min_replies`` sites remain, training
        goes on from there for the rows of those. Either way a ``MissingSites`` warning says so.
        """
        recorder = Recorder(federation)
        median = self.features == "fourier" and self.bandwidth == "median"
        request = None if self.privacy is None else _request(self.privacy)
        if request is not None:
            warn_if_forgotten(federation.engine)
        surveys, missing = ask_survey(
            federation, self.task, median, min_replies=min_replies, timeout=timeout, privacy=request
        )
        progress = _Progress(recorder, tuple(sorted(surveys)), missing)
        bandwidth = _common_bandwidth(surveys) if median else self.bandwidth
        while True:
            parameters = self._parameters(federation.seed, {name: surveys[name] for name in progress.names}, bandwidth)
            try:
                self._run(Sites(federation, progress.names, parameters, timeout), progress)
                break
            except SitesLost as lost:
                progress.missing |= lost.reasons
                needed = len(progress.names) if min_replies is None else max(1, min_replies)
                progress.names = tuple(name for name in progress.names if name not in progress.missing)
                if len(progress.names) < needed:
                    if progress.weights is None:
                        raise TooFewReplies(lost.task, needed, lost.replies) from None
                    progress.stopped = "sites lost"
                    break
                if not recorder.rounds:  # nothing was reached with the lost site that could be worth keeping
                    progress.weights = None
        columns = agree({name: found.schema for name, found in surveys.items()}).columns
        return replace(self._model(progress), columns=columns)

    def _parameters(self, seed: int, surveys: Mapping[str, SiteSurvey], bandwidth: Any) -> RidgeParameters:
        """The problem of these sites."""
        schema = agree({name: found.schema for name, found in surveys.items()})
        if self.task == "classify":
            check_classes(schema, stacklevel=4)
        return RidgeParameters(
            width=schema.width,
            features=self.features,
            n_components=self.n_components if self.features == "fourier" else 1,
            bandwidth=bandwidth if self.features == "fourier" else 1.0,
            seed=seed if self.features == "fourier" else 0,
            task=self.task,
            classes=schema.classes if self.task == "classify" else (),
            class_weights=_class_weights(self.class_weight, schema.classes, schema.counts),
            regularization=self.regularization,
            intercept=self.intercept,
        )

    def _run(self, sites: Sites, progress: _Progress) -> None:
        """Train with ``sites``, from where ``progress`` is."""
        if self.privacy is not None:
            self._run_released(sites, progress)
            return
        if self.method == "exact" and len(self.regularization) == 1 and not self.diagnose:
            progress.chosen = self.regularization[0]
            self._run_exact(sites, progress)
            return
        system = self._choose(sites.centred().start(), progress)
        if self.method == "exact":
            self._run_exact(sites, progress)
        elif self.method in ("newton", "conjugate"):
            self._run_second_order(system, progress)
        else:
            self._run_first_order(system, progress)
        if self.diagnose:
            self._diagnose(system, progress)

    def _choose(self, system: RidgeSystem, progress: _Progress) -> RidgeSystem:
        """The system with the candidate regularisation of the smallest loss."""
        candidates = self.regularization
        if progress.chosen is None and len(candidates) > 1:
            losses = system.losses()
            progress.path = {value: float(loss) for value, loss in zip(candidates, losses, strict=True)}
            progress.chosen = candidates[int(losses.argmin())]
        elif progress.chosen is None:
            progress.chosen = candidates[0]
        return replace(system, regularization=progress.chosen, position=candidates.index(progress.chosen))

    def _run_exact(self, sites: Sites, progress: _Progress) -> None:
        assert progress.chosen is not None
        moments, mass, progress.means = sites.moments()
        solution = minimise(moments, mass, progress.chosen)
        progress.parameters, progress.weights, progress.stopped = sites.parameters, solution.weights, "converged"
        progress.recorder.add(1, solution.objective, solution.gradient_norm)

    def _run_released(self, sites: Sites, progress: _Progress) -> None:
        from kernfed.federation.ridge.private import solve_released

        progress.chosen = self.regularization[0]
        weights, progress.terms = solve_released(sites, self.privacy, progress.chosen)  # type: ignore[arg-type]
        progress.parameters, progress.weights, progress.stopped = sites.parameters, weights, "converged"
        progress.recorder.add(1)

    def _run_second_order(self, system: RidgeSystem, progress: _Progress) -> None:
        """Rounds of two exchanges each, until there are enough or the gradient is small."""
        begin, step, at_end = _SECOND_ORDER[self.method]
        recorder = progress.recorder
        state = begin(system, progress.begin(system))
        if not recorder.rounds:
            recorder.add(0, state.objective, state.gradient_norm)
        enough = self.tolerance * float(np.linalg.norm(system.linear))
        while recorder.done < self.rounds:
            if state.gradient_norm <= enough:
                progress.stopped = "tolerance"
                break
            further = step(system, state)
            if further is None:
                progress.stopped = at_end
                break
            state = further
            progress.weights = state.weights
            recorder.add(recorder.done + 1, state.objective, state.gradient_norm)
        progress.heterogeneity = Heterogeneity(state.largest_eigenvalue)

    def _run_first_order(self, system: RidgeSystem, progress: _Progress) -> None:
        """Rounds of work at the sites (none for DKRR); the objective of a round is learned in the next one."""
        recorder = progress.recorder
        weights = progress.begin(system)
        if not recorder.rounds:
            recorder.add(0)
        if self.method == "dkrr":
            return
        largest = max(member.trace for member in system.members.values()) + system.regularization
        rate = self.learning_rate if self.learning_rate is not None else 1 / max(largest, np.finfo(float).tiny)
        proximal = 0.0
        if self.method == "fedprox":
            proximal = system.regularization if self.proximal is None else self.proximal
        while recorder.done < self.rounds:
            further, objective = system.descend(weights, self.local_steps, rate, proximal)
            recorder.set_objective(objective)
            if diverged(further):
                progress.stopped = "diverged"
                return
            progress.weights = weights = further
            recorder.add(recorder.done + 1)
        with suppress(SitesLost):  # all have taken part; only the objective stays unknown
            recorder.set_objective(system.descend(weights, 0, rate, proximal)[1])

    def _diagnose(self, system: RidgeSystem, progress: _Progress) -> None:
        """Measure heterogeneity; a site lost here has taken part in the training already."""
        assert progress.weights is not None
        own = {site: (solution, system.members[site].linear) for site, solution in system.solutions().items()}
        try:
            progress.heterogeneity = measure_heterogeneity(
                system,
                progress.weights,
                own,
                system.dimensions(),
                system.regularization,
                seed=system.sites.federation.seed,
                seen=progress.heterogeneity.largest_eigenvalue,
            )
        except SitesLost as lost:
            warnings.warn(f"heterogeneity was not measured: {lost.reasons}", MissingSites, stacklevel=4)

    def _model(self, progress: _Progress) -> RidgeModel:
        assert progress.parameters is not None
        assert progress.weights is not None
        assert progress.chosen is not None
        recorder = progress.recorder
        lost = progress.stopped == "sites lost"
        how = f"training ended after round {recorder.done}" if lost else "the model is that of the others"
        warn_missing(progress.missing, how, stacklevel=3)
        if self.method == "newton":
            _warn_divergence(recorder, progress.heterogeneity)
        parameters = replace(progress.parameters, regularization=(progress.chosen,))
        parts = (
            parameters,
            progress.weights,
            self.method,
            tuple(recorder.rounds),
            progress.stopped,
            progress.heterogeneity,
            progress.path,
            progress.missing,
        )
        if progress.terms is None:
            intercept = None if progress.means is None else progress.means.intercept(progress.weights)
            return RidgeModel(*parts, intercept=intercept)
        from kernfed.federation.ridge.private import PrivateRidgeModel

        return PrivateRidgeModel(*parts, privacy=progress.terms)


#: How to start, how to go on, and what it means that a method cannot.
_SECOND_ORDER: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "newton": (start_newton, newton_step, "diverged"),
    "conjugate": (start_conjugate, conjugate_step, "converged"),
}


def _request(mechanism: Any) -> dict[str, Any]:
    from kernfed.federation.release.charging import mechanism_to_values

    return mechanism_to_values(mechanism)


# Settings ---------------------------------------------------------------------------------------------------------


def _check_bandwidth(bandwidth: Any) -> float | tuple[float, ...] | str:
    if isinstance(bandwidth, str):
        return check_choice(bandwidth, "bandwidth", ("median",))
    if isinstance(bandwidth, (list, tuple, np.ndarray)):
        return tuple(check_number(value, "bandwidth", above=0) for value in bandwidth)
    return check_number(bandwidth, "bandwidth", above=0)


def _check_class_weight(class_weight: Any, task: str) -> ClassWeight:
    if class_weight is None:
        return None
    if task != "classify":
        raise InputError(f"class_weight is for task='classify', got {class_weight!r} with task={task!r}")
    if isinstance(class_weight, str):
        return check_choice(class_weight, "class_weight", ("balanced",))
    if not isinstance(class_weight, Mapping):
        raise InputError(f"class_weight must be None, 'balanced' or a weight for every label, got {class_weight!r}")
    return {label: check_number(weight, f"class_weight[{label!r}]", above=0) for label, weight in class_weight.items()}


def _class_weights(
    class_weight: ClassWeight, classes: tuple[Any, ...], counts: tuple[int, ...]
) -> tuple[float, ...] | None:
    """Weight of a row by class; "balanced" gives every class the same mass and all rows a mean weight of 1."""
    if class_weight is None:
        return None
    if isinstance(class_weight, str):
        return tuple(sum(counts) / (len(counts) * count) for count in counts)
    absent = [label for label in classes if label not in class_weight]
    if absent:
        raise InputError(f"class_weight must have a weight for every label, got none for {absent[0]!r}")
    return tuple(class_weight[label] for label in classes)


def _check_local_steps(steps: int | str, method: str, learning_rate: float | None) -> int | str:
    """A number of gradient steps, or "exact" for FedProx, whose local minimisers depend on the common weights."""
    if steps != "exact":
        return check_count(steps, "local_steps")
    if method != "fedprox":
        raise InputError(f"local_steps='exact' is for method='fedprox', got method={method!r}")
    if learning_rate is not None:
        raise InputError(f"learning_rate is for gradient steps, got {learning_rate!r} with local_steps='exact'")
    return steps


def _common_bandwidth(surveys: Mapping[str, SiteSurvey]) -> float:
    """Median of the sites' median distances, weighted by rows; 1 where no site has two rows."""
    return median_by_rows((survey.median, survey.rows) for survey in surveys.values() if survey.median > 0)


# Endings ----------------------------------------------------------------------------------------------------------


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
