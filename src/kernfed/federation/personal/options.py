"""Settings of a ``PersonalLearner``, checked when it is asked to learn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernfed.base.checks import check_choice, check_count, check_number
from kernfed.errors import InputError
from kernfed.federation.survey import ASKED_TASKS, Bandwidth, Participants, check_bandwidth
from kernfed.personal.gradient import check_simplex
from kernfed.personal.statistics import FEATURES, Problem
from kernfed.personal.weights import KERNELS, EmbeddingKernel, check_columns, penalty_constants
from kernfed.site.release.kept import check_kind

RULES = ("auto", "means", "printed", "local", "grand_mean")


@dataclass(frozen=True, eq=False)
class PersonalOptions:
    """The parameters of ``PersonalLearner``, where ``model`` is its kind and the layers of a network."""

    weights: Any
    kernel: str
    task: str
    kind: str
    hidden: tuple[int, ...]
    columns: str | tuple[int, ...]
    bandwidth: Bandwidth | str
    target_bandwidth: float
    kernel_components: int
    features: str
    n_components: int
    regularization: float | str
    fit_intercept: bool
    max_groups: int
    gains: bool
    steps: int
    learning_rate: float
    privacy: Any

    def uses(self, rule: str) -> bool:
        """Whether weights come from the rule of this name."""
        return isinstance(self.weights, str) and self.weights == rule

    @property
    def compares(self) -> bool:
        """Whether weights come from Q-aggregation."""
        return self.uses("printed") or isinstance(self.weights, tuple)

    @property
    def embeds(self) -> bool:
        """Whether weights come from mean embeddings."""
        return self.compares or self.uses("means")

    @property
    def needs_median(self) -> bool:
        """Whether the sites' median distance decides the bandwidth; a mechanism has features of its own."""
        return self.bandwidth == "median" and self.privacy is None and (self.features == "fourier" or self.embeds)

    @property
    def rule(self) -> str:
        """How weights are chosen, in words."""
        if isinstance(self.weights, str):
            return self.weights
        if isinstance(self.weights, tuple):
            return f"({self.weights[0]:g}, {self.weights[1]:g})"
        return "groups" if isinstance(self.weights, Mapping) else "given"

    def problem(self, taking_part: Participants, seed: int) -> Problem:
        """The problem of the sites that take part."""
        schema = taking_part.schema
        tasks = {survey.task for survey in taking_part.surveys.values()}
        if len(tasks) > 1:
            odd = sorted(name for name, survey in taking_part.surveys.items() if survey.task == "regress")
            raise InputError(f"sites have different kinds of labels: {odd[:5]} have floating-point ones; give task=")
        task = tasks.pop()
        if task == "classify" and len(schema.classes) < 2:
            raise InputError(f"the sites must have at least 2 classes together, got {list(schema.classes)}")
        if self.kind == "logistic" and task == "regress":
            raise InputError("model='logistic' classifies, and these labels are values; use 'ridge' or a network")
        random = self.features == "fourier"
        return Problem(
            schema.width,
            task,
            schema.classes if task == "classify" else (),
            self.features,
            self.n_components if random else 2,
            self._bandwidth(taking_part) if random else 1.0,
            seed if random else 0,
        )

    def embedding_kernel(self, problem: Problem, taking_part: Participants, seed: int) -> EmbeddingKernel | None:
        """The kernel by which sites are compared, if they are."""
        if not self.embeds:
            return None
        if self.privacy is not None:
            return _private_kernel(self.privacy, problem, self.columns)
        return EmbeddingKernel(
            problem.width,
            problem.n_targets,
            self.kernel,
            self.columns,
            self._bandwidth(taking_part),
            self.target_bandwidth,
            self.kernel_components,
            seed,
        )

    def _bandwidth(self, taking_part: Participants) -> Bandwidth:
        return taking_part.bandwidth() if isinstance(self.bandwidth, str) else self.bandwidth


def check_options(given: Mapping[str, Any]) -> PersonalOptions:
    """The options, if they can be had together; otherwise an ``InputError`` says which cannot."""
    kind, hidden = _check_model(given["model"])
    options = PersonalOptions(
        weights=_check_rule(given["weights"]),
        kernel=check_choice(given["kernel"], "kernel", KERNELS),
        task=check_choice(given["task"], "task", ASKED_TASKS),
        kind=kind,
        hidden=hidden,
        columns=check_columns(given["columns"]),
        bandwidth=check_bandwidth(given["bandwidth"]),
        target_bandwidth=check_number(given["target_bandwidth"], "target_bandwidth", above=0),
        kernel_components=check_count(given["kernel_components"], "kernel_components"),
        features=check_choice(given["features"], "features", FEATURES),
        n_components=check_count(given["n_components"], "n_components"),
        regularization=_check_regularization(given["regularization"]),
        fit_intercept=bool(given["fit_intercept"]),
        max_groups=check_count(given["max_groups"], "max_groups", at_least=0),
        gains=bool(given["gains"]),
        steps=check_count(given["steps"], "steps"),
        learning_rate=check_number(given["learning_rate"], "learning_rate", above=0),
        privacy=given["privacy"],
    )
    if options.privacy is not None:
        _check_private(options)
    return options


def _check_private(options: PersonalOptions) -> None:
    """Refuse what cannot be had with a released embedding."""
    check_kind(options.privacy, "record-embedding", "RecordEmbedding")
    if not options.compares or options.kernel != "fourier":
        raise InputError("privacy covers the embedding of kernel='fourier' with weights='printed' or (C_Q, C_P)")
    if options.kind != "none":
        raise InputError(
            "privacy covers the weights alone: statistics for training leave a site as they are; use model='none'"
        )


def _check_rule(weights: Any) -> Any:
    if isinstance(weights, str):
        return check_choice(weights, "weights", RULES)
    if isinstance(weights, Mapping):
        return dict(weights)
    if isinstance(weights, (tuple, list)) and len(weights) == 2 and np.ndim(weights[0]) == 0:
        return penalty_constants(tuple(weights), 2)
    matrix = np.asarray(weights, dtype=np.float64)
    if matrix.ndim != 2:
        raise InputError(
            f"weights must be one of {', '.join(map(repr, RULES))}, (C_Q, C_P), groups by site or a "
            f"matrix, got {weights!r:.80}"
        )
    return check_simplex(matrix)


def _check_model(model: Any) -> tuple[str, tuple[int, ...]]:
    if isinstance(model, str):
        return check_choice(model, "model", ("ridge", "logistic", "none")), ()
    if isinstance(model, (tuple, list)) and model:
        return "network", tuple(check_count(size, "size of a layer") for size in model)
    raise InputError(
        f"model must be 'ridge', 'logistic', 'none' or sizes of hidden layers such as (16, 16), got "
        f"{model!r:.80}; other networks: kernfed.personal.network.NetworkRisk"
    )


def _check_regularization(regularization: Any) -> float | str:
    if isinstance(regularization, str):
        return check_choice(regularization, "regularization", ("auto",))
    return check_number(regularization, "regularization", at_least=0)


def _private_kernel(mechanism: Any, problem: Problem, columns: str | tuple[int, ...]) -> EmbeddingKernel:
    """The kernel of a mechanism: its features are of the compared columns, in units of 1."""
    features = mechanism.features
    if features.bandwidth != 1.0:
        raise InputError(f"the features of privacy= must have bandwidth 1.0, got {features.bandwidth}; scale the rows")
    kernel = EmbeddingKernel(
        problem.width, problem.n_targets, "fourier", columns, 1.0, 1.0, features.n_components, features.seed
    )
    compared = kernel.rows(np.zeros((1, problem.width)), np.zeros((1, problem.n_targets))).shape[1]
    if features.width != compared:
        raise InputError(f"the features of privacy= must have the {compared} compared columns, got {features.width}")
    return kernel
