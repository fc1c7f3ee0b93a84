"""How each method of a ridge regression goes from round to round with the sites it has."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.base.labels import ClassIndex
from kernfed.base.warn import warn
from kernfed.errors import MissingSites, SitesLost
from kernfed.federation.program import Program
from kernfed.federation.ridge.choice import choose_strength, path_of_rounds
from kernfed.federation.ridge.options import RidgeOptions
from kernfed.federation.ridge.plausible import Range
from kernfed.federation.ridge.pooling import Pooled, ask_gradient, ask_pooled, class_counts, class_holders
from kernfed.federation.ridge.sums import solve_released, solve_shares, sum_pooled
from kernfed.federation.ridge.system import Recorder, RidgeSystem, Sites
from kernfed.promise import Terms
from kernfed.ridge.heterogeneity import Heterogeneity, measure_heterogeneity
from kernfed.ridge.logistic import LogisticProblem, LogisticState, logistic_step
from kernfed.ridge.parameters import RidgeChoices, RidgeParameters
from kernfed.ridge.solvers import conjugate_step, minimise, newton_step, start_conjugate, start_newton
from kernfed.ridge.sums import Means

#: How to start, how to go on, and what it means that a method cannot.
_SECOND_ORDER: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "newton": (start_newton, newton_step, "diverged"),
    "conjugate": (start_conjugate, conjugate_step, "converged"),
}


@dataclass
class Progress:
    """What a fit has so far; where a site is lost, others go on from here.

    ``parameters`` are those of ``weights``, and ``means`` those of the rows they are fitted to, for an intercept.
    ``pooled`` are the sums that "exact" solved, under ``penalty``. ``range`` is that of values to regress.
    """

    recorder: Recorder
    parameters: RidgeParameters | None = None
    weights: FloatArray | None = None
    means: Means | None = None
    stopped: str = "rounds"
    heterogeneity: Heterogeneity = field(default_factory=Heterogeneity)
    path: dict[float, float] = field(default_factory=dict)
    chosen: float | None = None
    terms: Terms | None = None
    choices: RidgeChoices = field(default_factory=RidgeChoices)
    temperature: float | None = None
    counts: tuple[int, ...] = ()
    penalty: FloatArray | None = None
    pooled: Pooled | None = None
    range: Range | None = None

    def begin(self, system: RidgeSystem) -> FloatArray:
        """Where to start: the average of the local solutions, or where all were when a site was lost."""
        parameters = system.sites.parameters
        if self.weights is None or self.parameters is None:
            self.weights = system.mean_solutions()[system.position]
        elif parameters.task == "classify":
            self.weights = self.weights[:, ClassIndex(self.parameters.classes).numbers(parameters.classes)]
        self.parameters, self.means, self.range = parameters, system.sites.means, system.range
        return self.weights

    def forget_if_nothing_was_reached(self) -> None:
        """Before the first round there is nothing that those who go on could keep of a lost site."""
        if not self.recorder.rounds:
            self.weights = None


def run(options: RidgeOptions, sites: Sites, progress: Progress) -> Program[None]:
    """Train with ``sites``, from where ``progress`` is."""
    progress.counts = class_counts(sites)
    if sites.aggregate == "median":
        progress.choices = replace(progress.choices, holders=class_holders(sites))
    if options.privacy is not None:
        yield from _run_released(options, sites, progress)
        return
    if options.method == "exact":
        yield from _run_exact(options, sites, progress)
        if options.diagnose:
            assert progress.chosen is not None
            solved = replace(sites, parameters=replace(sites.parameters, regularization=(progress.chosen,)))
            _diagnose((yield from (yield from solved.centred()).start()), progress)
        return
    if isinstance(options.regularization, str):
        path = (yield from path_of_rounds(sites)) if progress.chosen is None else (progress.chosen,)
        sites = replace(sites, parameters=replace(sites.parameters, regularization=path))
    started = yield from (yield from sites.centred()).start()
    system = _choose(sites.parameters.regularization, started, progress)
    if options.method in _SECOND_ORDER:
        _run_second_order(options, system, progress)
    else:
        progress.begin(system)  # DKRR
        if not progress.recorder.rounds:
            progress.recorder.add(0)
    if options.diagnose:
        _diagnose(system, progress)


def _choose(candidates: tuple[float, ...], system: RidgeSystem, progress: Progress) -> RidgeSystem:
    """The system with the candidate regularisation of the smallest loss."""
    if progress.chosen is None and len(candidates) > 1:
        losses = system.losses()
        progress.path = {value: float(loss) for value, loss in zip(candidates, losses, strict=True)}
        progress.chosen = candidates[int(losses.argmin())]
        progress.choices = replace(progress.choices, regularization="averages left out")
    elif progress.chosen is None:
        progress.chosen = candidates[0]
    return replace(system, regularization=progress.chosen, position=candidates.index(progress.chosen))


def _run_exact(options: RidgeOptions, sites: Sites, progress: Progress) -> Program[None]:
    asked = ask_pooled(sites) if options.committee is None else sum_pooled(sites, options.committee)
    pooled = yield from asked
    if progress.chosen is None:
        chosen = yield from choose_strength(options, pooled)
        progress.chosen, progress.penalty = chosen.regularization, chosen.penalty
        progress.path, progress.temperature = dict(chosen.path or {}), chosen.temperature
        scale = chosen.scale if options.features == "given" else progress.choices.scale
        progress.choices = replace(
            progress.choices, regularization=chosen.how, scale=scale, errors=dict(chosen.errors or {})
        )
    progress.pooled, progress.range = pooled, pooled.range
    solution = minimise(pooled.moments, pooled.mass, progress.chosen, progress.penalty)
    progress.parameters, progress.means, progress.weights = sites.parameters, pooled.means, solution.weights
    progress.stopped = "converged"
    progress.recorder.add(1, solution.objective, solution.gradient_norm)
    if options.head == "logistic":
        yield from _run_logistic(options, pooled, progress)


def _run_logistic(options: RidgeOptions, pooled: Pooled, progress: Progress) -> Program[None]:
    """Rounds of one gradient each, from the squared solution over its temperature."""
    assert progress.chosen is not None
    assert progress.weights is not None
    T = progress.temperature or 1.0
    middle = np.zeros(progress.weights.shape[1]) if pooled.means is None else pooled.means.targets
    intercept = pooled.means is not None
    problem = LogisticProblem.of(pooled.moments, pooled.mass, progress.chosen, progress.penalty, intercept)
    state = LogisticState.start(progress.weights / T, middle / T)
    enough = options.tolerance * problem.size(pooled.moments.cross / pooled.mass, np.zeros_like(middle))
    progress.stopped, done = "rounds", progress.recorder.done
    for number in range(1, options.rounds + 1):
        sums = yield from ask_gradient(pooled, *state.look)
        by_weights, by_intercept, objective = problem.gradient(sums, state)
        size = problem.size(by_weights, by_intercept)
        if size <= enough:
            progress.stopped = "tolerance"
            break
        state = logistic_step(problem, state, by_weights, by_intercept)
        progress.recorder.add(done + number, objective, size)
    progress.weights, progress.temperature = state.weights, 1.0
    if pooled.means is not None:  # the intercept is that of rows around the means
        progress.means = replace(pooled.means, targets=state.intercept)


def _run_released(options: RidgeOptions, sites: Sites, progress: Progress) -> Program[None]:
    given = None if isinstance(options.regularization, str) else options.regularization[0]
    if options.committee is None:
        solved = yield from solve_released(sites, options.privacy, given)
    else:
        solved = yield from solve_shares(sites, options.privacy, options.committee, given)
    progress.weights, progress.terms, progress.chosen = solved
    if given is None:
        progress.choices = replace(progress.choices, regularization="sums")
    progress.parameters, progress.stopped = sites.parameters, "converged"
    if sites.parameters.task == "regress":  # the public bound that targets are clipped to
        progress.range = (-options.privacy.target_radius, options.privacy.target_radius)
    progress.recorder.add(1)


def _run_second_order(options: RidgeOptions, system: RidgeSystem, progress: Progress) -> None:
    """Rounds of two exchanges each, until there are enough or the gradient is small."""
    begin, step, at_end = _SECOND_ORDER[options.method]
    recorder = progress.recorder
    state = begin(system, progress.begin(system))
    if not recorder.rounds:
        recorder.add(0, state.objective, state.gradient_norm)
    enough = options.tolerance * float(np.linalg.norm(system.linear))
    while recorder.done < options.rounds:
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


def _diagnose(system: RidgeSystem, progress: Progress) -> None:
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
        warn(f"heterogeneity was not measured: {lost.reasons}", MissingSites)
