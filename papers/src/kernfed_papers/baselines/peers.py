"""Peers tuned on training rows and computed from what sites tell: heads of sums, DeepAFL, federated averaging."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from kernfed.data import Dataset
from kernfed.errors import TooFewReplies
from kernfed.federation import Federation
from kernfed_papers.arrays import FloatArray, IntArray
from kernfed_papers.baselines.averaging import AveragingLearner
from kernfed_papers.baselines.averaging_model import AveragingModel
from kernfed_papers.baselines.deep_analytic import MOST_LAYERS, WIDTH, layer_answers
from kernfed_papers.baselines.heads import SumPeer
from kernfed_papers.baselines.sums import ClassSums, summed
from kernfed_papers.baselines.tuning import Axis, Choice, Point, choose, folds, mean_over_folds, share_right

Sites = Mapping[str, tuple[FloatArray, IntArray]]
#: Training rows on which peers are tuned; heads of sums cost little.
_MOST, _MOST_DEEP = 12_000, 4000
ROUNDS = (1, 10, 100)
#: Rounds after which learning rates are compared.
_TRIAL_ROUNDS = 5


def site_sums(sites: Sites, n_classes: int, *, by_class: bool) -> ClassSums:
    """What leaves the sites, added up."""
    return summed(ClassSums.of(x, y, n_classes, by_class=by_class) for x, y in sites.values())


def head_answers(peer: SumPeer, data: Dataset, sites: Sites) -> tuple[IntArray, str]:
    """Labels (m,) of the test rows by a head of the sites' sums, and how it was set.

    The setting is chosen on pooled training rows by cross-validation, which no federation of one round could do: it
    favours the peer.
    """
    classes = len(data.class_names)
    choice = choose_head(peer, data)
    sums = site_sums(sites, classes, by_class=peer.by_class)
    head = next(iter(peer.heads(sums, [choice.point])))
    return head(data.x_test.astype(np.float64)), str(choice)


def choose_head(peer: SumPeer, data: Dataset) -> Choice:
    """The point of a peer's grid that does best on left-out training rows."""
    classes, x, y = len(data.class_names), data.x_train, data.y_train
    splits = [
        (ClassSums.of(x[fitted], y[fitted], classes, by_class=peer.by_class), left)
        for fitted, left in folds(y, data.name, _MOST_DEEP if peer.by_class else _MOST)
    ]

    def accuracies(points: Sequence[Point]) -> list[float]:
        return mean_over_folds(
            [
                [share_right(head(x[left].astype(np.float64)), y[left]) for head in peer.heads(sums, points)]
                for sums, left in splits
            ]
        )

    return choose(peer.axes, accuracies)


def deep_answers(data: Dataset, sites: Sites, choice: Choice, seed: int) -> tuple[IntArray, str]:
    """Labels (m,) of the test rows by DeepAFL, and how it was set."""
    classes, depth = len(data.class_names), int(choice["layers"])
    answers = layer_answers(sites, data.x_test, classes, choice["lambda"], seed=seed, layers=depth)
    predicted = next(islice(answers, depth, None))
    return predicted, f"{WIDTH} units, {2 * depth + 1} exchanges; {choice}"


def choose_deep(data: Dataset) -> Choice:
    """Penalty and layers of DeepAFL that do best on a third of at most 4,000 training rows.

    A deeper network continues where a shallower one with the same penalty stopped.
    """
    classes, x, y = len(data.class_names), data.x_train, data.y_train
    fitted, left = next(iter(folds(y, data.name, _MOST_DEEP)))
    axes = (
        Axis("lambda", (0.1, 1.0, 10.0), lowest=1e-6),
        Axis("layers", (1.0, 2.0, 4.0, 8.0), step=2, lowest=1, highest=MOST_LAYERS, whole=True),
    )
    paths: dict[float, Iterator[IntArray]] = {}
    right: dict[Point, float] = {}

    def accuracies(points: Sequence[Point]) -> list[float]:
        for strength, layers in sorted(points):
            if strength not in paths:
                sites = {"all": (x[fitted], y[fitted])}
                paths[strength] = layer_answers(sites, x[left], classes, strength, seed=0)
            done = sum(known == strength for known, _ in right)
            for depth, predicted in zip(range(done, int(layers) + 1), paths[strength], strict=False):
                right[strength, float(depth)] = share_right(predicted, y[left])
        return [right[point] for point in points]

    return choose(axes, accuracies)


@dataclass(frozen=True, eq=False)
class AveragedAnswers:
    """Labels (m,) after so many rounds, and the bytes that had travelled by then."""

    rounds: int
    predicted: IntArray
    note: str
    bytes_up: int
    bytes_down: int


def averaged_answers(
    data: Dataset, sites: Sites, seed: int, rounds: Sequence[int] = ROUNDS, hidden: int = 128
) -> list[AveragedAnswers]:
    """Federated averaging of a network with one hidden layer after each of ``rounds``.

    The learning rate is the best after a few rounds on pooled training rows, which favours it.
    """
    choice = _choose_rate(data, sites, seed, hidden)
    answers: list[AveragedAnswers] = []

    def look(number: int, model: AveragingModel) -> None:
        if number in rounds:
            done = model.history_[-1]
            predicted = np.asarray(model.predict(data.x_test))
            answers.append(AveragedAnswers(number, predicted, str(choice), done.bytes_up, done.bytes_down))

    with Federation.local(sites, seed=seed) as federation:
        _averaging(choice["rate"], max(rounds), hidden).fit(federation, callback=look)
    return answers


def _averaging(rate: float, rounds: int, hidden: int) -> AveragingLearner:
    return AveragingLearner("mlp", rounds=rounds, learning_rate=rate, hidden=hidden)


def _choose_rate(data: Dataset, sites: Sites, seed: int, hidden: int) -> Choice:
    with Federation.local(sites, seed=seed) as federation:

        def right(rate: float) -> float:
            try:
                model = _averaging(rate, _TRIAL_ROUNDS, hidden).fit(federation)
            except TooFewReplies:  # descent diverged at a site
                return 0.0
            return share_right(np.asarray(model.predict(data.x_train)), data.y_train)

        judges = f"training rows after {_TRIAL_ROUNDS} rounds"
        return choose(
            [Axis("rate", (0.1, 0.3, 0.9), step=3)], lambda points: [right(rate) for (rate,) in points], judges
        )
