"""Settings of a ``RidgeLearner``, checked when it is asked to learn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernfed.base.checks import check_choice, check_count, check_number
from kernfed.errors import InputError
from kernfed.federation.survey import Bandwidth, check_bandwidth
from kernfed.ridge.model import HEADS, METHODS
from kernfed.ridge.parameters import (
    AGGREGATES,
    FEATURES,
    TASKS,
    RidgeParameters,
    balanced_weights,
    check_flag,
    check_path,
    fourier_components,
)
from kernfed.secure.committee.terms import Committee, read_setting
from kernfed.site.protocol.schema import Schema
from kernfed.site.release.kept import check_kind

ClassWeight = str | Mapping[Any, float] | None
SCALES = ("auto", "columns", "entries")
#: Rounds unless they are given.
_ROUNDS = {"squared": 10, "logistic": 30}


@dataclass(frozen=True)
class RidgeOptions:
    """The parameters of ``RidgeLearner``, with several regularisations and bandwidths as tuples.

    Decided are ``fit_intercept`` (without being told yes, and no with ``privacy``), ``rounds``, and what "auto" cannot
    be: only "exact" chooses a bandwidth and a scale, and without privacy.
    """

    method: str
    head: str
    rounds: int
    n_components: int | str
    bandwidth: Bandwidth | str
    regularization: tuple[float, ...] | str
    scale: str | None
    task: str
    class_weight: ClassWeight
    features: str
    tolerance: float
    fit_intercept: bool
    diagnose: bool
    privacy: Any
    committee: Committee | None = None
    aggregate: str = "sum"

    @property
    def needs_median(self) -> bool:
        """Whether the sites' median distance decides the bandwidth, or what it is chosen from."""
        return self.features == "fourier" and isinstance(self.bandwidth, str)

    @property
    def candidates(self) -> tuple[float, ...]:
        """Regularisations to choose from, where they are given; a placeholder before "auto" has any."""
        return (1.0,) if isinstance(self.regularization, str) else self.regularization

    def components(self, rows: int) -> int:
        """Number of Fourier features for so many rows of all sites."""
        if isinstance(self.n_components, int):
            return self.n_components
        return fourier_components(rows)

    def parameters(self, schema: Schema, bandwidth: Bandwidth, components: int, seed: int) -> RidgeParameters:
        """The problem of sites that agree on ``schema``; its regularisation stands for itself where it is "auto"."""
        random = self.features == "fourier"
        return RidgeParameters(
            width=schema.width,
            features=self.features,
            n_components=components if random else 1,
            bandwidth=bandwidth if random else 1.0,
            seed=seed if random else 0,
            task=self.task,
            classes=schema.classes if self.task == "classify" else (),
            class_weights=_class_weights(self.class_weight, schema),
            regularization=self.candidates,
            fit_intercept=self.fit_intercept,
        )


def check_options(given: Mapping[str, Any]) -> RidgeOptions:
    """The options, if they can be had together; otherwise an ``InputError`` says which cannot."""
    method = check_choice(given["method"], "method", METHODS)
    task = check_choice(given["task"], "task", TASKS)
    intercept = given["fit_intercept"]
    head = _check_head(given["head"], method, task)
    rounds, components = given["rounds"], given["n_components"]
    options = RidgeOptions(
        method=method,
        head=head,
        rounds=_ROUNDS[head] if rounds is None else check_count(rounds, "rounds", at_least=0),
        n_components=components if is_auto(components) else check_count(components, "n_components"),
        bandwidth="auto" if is_auto(given["bandwidth"]) else check_bandwidth(given["bandwidth"]),
        regularization="auto" if is_auto(given["regularization"]) else check_path(given["regularization"]),
        scale=None if given["scale"] is None else check_choice(given["scale"], "scale", SCALES),
        task=task,
        class_weight=_check_class_weight(given["class_weight"], task),
        features=check_choice(given["features"], "features", FEATURES),
        tolerance=check_number(given["tolerance"], "tolerance", at_least=0),
        fit_intercept=given["privacy"] is None if intercept is None else check_flag(intercept, "fit_intercept"),
        diagnose=bool(given["diagnose"]),
        privacy=given["privacy"],
        committee=read_setting(given["sum"]),
        aggregate=check_choice(given["aggregate"], "aggregate", AGGREGATES),
    )
    if options.aggregate == "median":
        _check_median(options)
    if options.committee is not None:
        _check_summed(options)
    if options.privacy is not None:
        _check_private(options)
    if options.scale == "columns" and method != "exact":
        raise InputError(f"scale='columns' is for method='exact', got method={method!r}; scale the columns before")
    return options


def is_auto(value: Any) -> bool:
    """Whether a parameter is to be chosen."""
    return isinstance(value, str) and value == "auto"


def _check_head(head: Any, method: str, task: str) -> str:
    check_choice(head, "head", HEADS)
    if head == "logistic" and (method != "exact" or task != "classify"):
        raise InputError(
            f"head='logistic' is for method='exact' and task='classify', got method={method!r} and task={task!r}"
        )
    return str(head)


def _check_summed(options: RidgeOptions) -> None:
    """Refuse what sites would tell each for itself, where only sums are to be told."""
    told = {
        f"method={options.method!r} has every site answer for itself; use method='exact'": options.method != "exact",
        "head='logistic' has every site tell its gradients; use head='squared'": options.head == "logistic",
        "scale='columns' has every site tell spreads; leave it out, or features='given'": (
            options.scale == "columns" and options.features == "fourier"
        ),
        "choosing among regularizations has every site tell errors; give one, or 'auto' for the rule of the sums": (
            len(options.candidates) > 1
        ),
        "diagnose has every site answer for itself; leave it False": options.diagnose,
    }
    for reason, wrong in told.items():
        if wrong:
            raise InputError(f"with sum= nobody sees a site's part: {reason}")


def _check_median(options: RidgeOptions) -> None:
    """Refuse what is made of sums that a median has no part in."""
    summed = {
        f"method={options.method!r} averages answers of every round; use method='exact'": options.method != "exact",
        "head='logistic' adds up gradients of every round; use head='squared'": options.head == "logistic",
        "with sum= nobody sees a site's part, so there is nothing to take a median of; leave one of them out": (
            options.committee is not None
        ),
        "with privacy released sums are added up; leave one of them out": options.privacy is not None,
    }
    for reason, wrong in summed.items():
        if wrong:
            raise InputError(f"aggregate='median' cannot be had: {reason}")


def _check_private(options: RidgeOptions) -> None:
    """Refuse what cannot be had with released sums."""
    check_kind(options.privacy, "record-ridge", "RecordRidge")
    unsound = {
        f"method={options.method!r} exchanges sums of the raw rows; use method='exact'": options.method != "exact",
        f"bandwidth={options.bandwidth!r} looks at the raw rows; give a number": options.needs_median,
        "choosing among regularizations looks at the raw rows; give one": len(options.candidates) > 1,
        "head='logistic' exchanges sums of the raw rows in every round; use head='squared'": (
            options.head == "logistic"
        ),
        "scale='columns' looks at the raw rows; scale the columns by what is public": options.scale == "columns",
        "class_weight needs rows of other norms than the mechanism clips to; leave it None": (
            options.class_weight is not None
        ),
        "diagnose exchanges sums of the raw rows; leave it False": options.diagnose,
        "fit_intercept needs means of the raw rows; leave it out, and subtract from y what is known of its mean": (
            options.fit_intercept
        ),
    }
    for reason, wrong in unsound.items():
        if wrong:
            raise InputError(f"privacy cannot be kept: {reason}")


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


def _class_weights(class_weight: ClassWeight, schema: Schema) -> tuple[float, ...] | None:
    """Weight of a row by class; "balanced" gives every class the same mass and all rows a mean weight of 1."""
    if class_weight is None:
        return None
    if isinstance(class_weight, str):
        return balanced_weights(schema.counts)
    absent = [label for label in schema.classes if label not in class_weight]
    if absent:
        raise InputError(f"class_weight must have a weight for every label, got none for {absent[0]!r}")
    return tuple(class_weight[label] for label in schema.classes)
