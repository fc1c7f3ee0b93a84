"""The sites of a personalised problem: every question that a ``PersonalLearner`` asks, and the check of its answers."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernfed.base.checks import FloatArray
from kernfed.errors import InputError
from kernfed.federation.asking import Federation
from kernfed.federation.program import Ask, Program
from kernfed.federation.survey import Survey, ask_all, check_arrays, far_above
from kernfed.kernels import MeanEmbedding
from kernfed.personal.gradient import Slopes, descend, minimise, n_parameters, weighted_risks
from kernfed.personal.groups import Halves
from kernfed.personal.prior import Gain, SitePrior
from kernfed.personal.statistics import Coordinates, Problem, SiteStatistics
from kernfed.personal.weights import EmbeddingKernel
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.traffic import Replies

#: Bytes of questions that differ by site, held at once.
_ASKED_AT_ONCE = 2**27


@dataclass(frozen=True, eq=False)
class Received:
    """What sites sent, in order of their names; statistics and penalties, embeddings, or halves, may be absent."""

    statistics: Mapping[str, SiteStatistics]
    penalties: FloatArray
    embeddings: tuple[MeanEmbedding, ...]
    halves: tuple[Halves, ...] = ()


@dataclass(frozen=True)
class PersonalSites:
    """Sites that all must answer, in one problem; to ``surveys``, what each said before, its answers are held."""

    federation: Federation
    names: tuple[str, ...]
    problem: Problem
    timeout: float
    surveys: Mapping[str, Survey] = field(default_factory=dict)

    def ask(
        self,
        task: str,
        payload: Payload,
        check: Callable[[str, Payload], object],
        compare: Callable[[Replies], Mapping[str, str]] | None = None,
    ) -> Program[Replies]:
        """Answers of all sites, or ``SitesLost``; ``check(site, answer)`` raises ValueError for one that is false."""
        return ask_all(task, payload, self.names, check, compare)

    def check_rows(self, site: str, rows: float) -> None:
        """Refuse sums of another number of rows than the site surveyed."""
        surveyed = self.surveys.get(site)
        if surveyed is not None and rows != surveyed.rows:
            raise InputError(f"expected sums of the {surveyed.rows:,} rows surveyed, got {rows:,.0f}")

    def receive(
        self, kernel: EmbeddingKernel | None, *, statistics: bool, intercept: bool, halves: bool = False
    ) -> Program[Received]:
        """Statistics and embeddings, of all rows or of halves, in one exchange; nothing is asked where none is used."""
        if kernel is None and not statistics:
            return Received({}, np.zeros(0), ())
        values: dict[str, Any] = {
            "problem": self.problem.to_values(),
            "statistics": statistics,
            "intercept": intercept,
            "kernel": None if kernel is None else kernel.to_values(),
            "halves": halves,
        }
        names = () if kernel is None else ("embedding.", "other.") if halves else ("embedding.",)
        dimension = 0 if kernel is None else kernel.dimension

        bound = math.sqrt(2) if kernel is not None and kernel.kind == "fourier" else math.inf

        def read(site: str, payload: Payload) -> tuple[SiteStatistics | None, float, tuple[MeanEmbedding, ...]]:
            own, penalty = self._read_statistics(site, payload) if statistics else (None, 1.0)
            embeddings = tuple(_read_embedding(_part(payload, name), dimension, bound) for name in names)
            if embeddings:
                self.check_rows(site, sum(embedding.weight for embedding in embeddings))
            return own, penalty, embeddings

        def compare(answers: Replies) -> dict[str, str]:
            parts = {site: read(site, answer) for site, answer in answers}
            squares = {site: _mean_square(own) for site, (own, _, _) in parts.items() if own is not None}
            sizes = {site: max((_size(e) for e in found), default=0.0) for site, (_, _, found) in parts.items()}
            return far_above(squares, "mean square of features and targets") | far_above(sizes, "size of an embedding")

        answers = yield from self.ask("personal_statistics", Payload(values=values), read, compare)
        replies = [read(*answer) for answer in answers]
        named = {name: own for name, (own, _, _) in zip(self.names, replies, strict=True) if own is not None}
        penalties = np.array([penalty for _, penalty, _ in replies])
        if halves:
            return Received(named, penalties, (), tuple((one, other) for _, _, (one, other) in replies))
        return Received(named, penalties, tuple(embedding for _, _, parts in replies for embedding in parts))

    def _read_statistics(self, site: str, payload: Payload) -> tuple[SiteStatistics, float]:
        own = SiteStatistics.from_arrays(_part(payload, "statistics."))
        self.check_rows(site, own.n)
        if (own.width, own.targets) != (self.problem.n_features, self.problem.n_targets):
            raise InputError(
                f"statistics must be of {self.problem.n_features} features and {self.problem.n_targets} "
                f"targets, got {own.width} and {own.targets}"
            )
        penalty = payload.arrays["penalty"]
        if penalty.shape != (1,) or not 0 < float(penalty[0]) < np.inf:
            raise InputError(f"penalty must be one positive number, got {penalty}")
        return own, float(penalty[0])

    def forms(self, kernel: EmbeddingKernel, embeddings: tuple[MeanEmbedding, ...]) -> Program[FloatArray]:
        """q_tk (B, B), row t from site t; NaN where a site cannot say."""
        values = {"problem": self.problem.to_values(), "kernel": kernel.to_values()}
        question = Payload({"means": np.stack([entry.mean for entry in embeddings])}, values)
        shapes = {"forms": (len(embeddings),)}
        replies = yield from self.ask("personal_forms", question, lambda _, payload: check_arrays(payload, shapes))
        forms = np.stack([payload.arrays["forms"] for _, payload in replies])
        return np.asarray(np.where(forms < 0, np.nan, forms))

    def gains(self, coordinates: Coordinates, priors: Iterable[tuple[str, SitePrior]]) -> Program[dict[str, Gain]]:
        """What the others are worth to each site that says it, asked all at once, or as many as memory is kept for."""
        common = {f"coordinates.{key}": array for key, array in coordinates.to_arrays().items()}
        values = {"problem": self.problem.to_values()}
        questions: dict[str, Payload] = {}
        gains: dict[str, Gain] = {}
        size = 0
        for name, prior in priors:
            arrays = common | {f"prior.{key}": array for key, array in prior.to_arrays().items()}
            questions[name] = Payload(arrays, values)
            size += sum(array.nbytes for array in arrays.values())
            if size > _ASKED_AT_ONCE:
                gains |= yield from self._ask_gains(questions)
                questions, size = {}, 0
        return gains | (yield from self._ask_gains(questions))

    def _ask_gains(self, questions: Mapping[str, Payload]) -> Program[dict[str, Gain]]:
        def check(site: str, payload: Payload) -> None:  # noqa: ARG001  every check has this signature
            check_arrays(payload, {"gain": (3,)})

        if not questions:
            return {}
        replies = yield Ask("personal_gain", questions, min_replies=0, check=check)
        facts = {name: payload.arrays["gain"].tolist() for name, payload in replies}
        return {name: Gain(alone, together, int(rows)) for name, (alone, together, rows) in facts.items()}

    def descend(
        self,
        weights: FloatArray,
        kind: str,
        hidden: tuple[int, ...],
        regularization: float,
        steps: int,
        learning_rate: float,
    ) -> FloatArray:
        """Parameters (B, P) of all sites' models of their weighted risks; a question to everybody per step."""
        values = {
            "problem": self.problem.to_values(),
            "kind": kind,
            "hidden": list(hidden),
            "regularization": regularization,
        }

        def ask(parameters: FloatArray) -> Iterator[Slopes]:
            def check(_: str, payload: Payload) -> None:
                losses, slopes = payload.arrays["losses"], payload.arrays["gradients"]
                if losses.shape != (len(parameters),) or slopes.shape != parameters.shape:
                    raise InputError(f"losses and gradients must fit parameters {parameters.shape}, got {slopes.shape}")
                if not np.isfinite(losses).all() or not np.isfinite(slopes).all():
                    raise InputError("losses and gradients must be finite")

            def compare(answers: Replies) -> dict[str, str]:
                sizes = {site: float(np.abs(answer.arrays["gradients"]).max(initial=0.0)) for site, answer in answers}
                return far_above(sizes, "gradient")

            asked = self.ask("personal_gradient", Payload({"parameters": parameters}, values), check, compare)
            replies = self.federation.run(asked, timeout=self.timeout)
            return ((payload.arrays["losses"], payload.arrays["gradients"]) for _, payload in replies)

        risks = weighted_risks(weights, ask)
        if kind == "logistic":
            size = n_parameters(self.problem.n_features, self.problem.n_targets)
            return minimise(risks, np.zeros((len(weights), size)), max_steps=steps).parameters
        from kernfed.personal.network import initial_parameters, relu_network  # torch is loaded where networks are

        problem = self.problem
        start = initial_parameters(
            lambda: relu_network(problem.n_features, hidden, problem.n_targets), self.names, self.federation.seed
        )
        return descend(risks, start, steps=steps, learning_rate=learning_rate).parameters


def _part(payload: Payload, prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): array for name, array in payload.arrays.items() if name.startswith(prefix)}


def _read_embedding(arrays: Mapping[str, Any], dimension: int, bound: float) -> MeanEmbedding:
    """An embedding of ``dimension`` numbers whose features have norm ``bound`` at most."""
    embedding = MeanEmbedding.from_arrays(arrays)
    if len(embedding.mean) != dimension:
        raise InputError(f"an embedding must have {dimension} numbers, got {len(embedding.mean)}")
    if not _size(embedding) <= bound**2 * (1 + 1e-6):
        raise InputError(
            f"features of norm {bound:.4g} at most have no embedding of mean square {_size(embedding):.4g}"
        )
    return embedding


def _mean_square(own: SiteStatistics) -> float:
    """Mean square of a row of features and targets."""
    return float(own.mean @ own.mean + np.square(own.factor).sum() / own.n)


def _size(embedding: MeanEmbedding) -> float:
    """Mean square of the features of the embedded rows."""
    return float(embedding.mean @ embedding.mean + embedding.spread / embedding.weight)
