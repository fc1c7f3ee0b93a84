"""Statistics of rows that sites keep aside: bounded sums over scores (n, ...) and labels (n,), and how sites answer.

The model travels to the site (``test_model``), or scores of rows that went out as queries do (``held_out_queries``,
``test_scores``). Either way the question names its statistics, and what leaves is their sums: in the clear, or in a
masked sum of all sites; ``noisy_coverage`` has the ways with noise. Policies allow a task as a whole, or a part of it:
"test_model:outcomes", "test_model:coverage:noisy". That rows may go out as queries is a task of its own, so that a
site can let models be tested and keep its rows.

Labels do not travel, but counts of right answers tell them to whoever asks with answers of his own making: a policy
should allow these tasks only to callers who may know the labels of rows kept aside.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.model import Model
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError, Refused, SchemaMismatch
from kernfed.files import Record, from_record, labels_from_values
from kernfed.site.protocol.message import Payload
from kernfed.site.protocol.task import resolve, task
from kernfed.site.rows import Rows
from kernfed.site.site import Site
from kernfed.statistics.bounds import saturate
from kernfed.testing.outcomes import class_numbers
from kernfed.testing.predictors import is_regressor

Sums = Mapping[str, npt.NDArray[Any]]

#: More rows than this are a lie; sums of them stay exact.
MOST_ROWS = 2**40
#: Arrays of a question that are the model's begin with this.
MODEL = "model."
#: Where each statistic is: nothing is imported before it is asked for.
STATISTICS = {
    "outcomes": "kernfed.testing.statistics:Outcomes",
    "errors": "kernfed.testing.statistics:Errors",
    "temperatures": "kernfed.testing.statistics:Temperatures",
    "coverage": "kernfed.testing.statistics:Coverage",
    "influence": "kernfed.testing.influence:Losses",
}
#: What answers with noise, likewise: it loads what accounts for it.
NOISE = "kernfed.testing.noisy_coverage:answer_with_noise"


@dataclass(frozen=True)
class Array:
    """One array of sums: its shape, the largest size of an entry at one site, whether entries are whole, or signed."""

    shape: tuple[int, ...]
    bound: float = float(MOST_ROWS)
    whole: bool = True
    signed: bool = False


class HeldOutStatistic(ABC):
    """What a site adds up over the rows that it keeps aside, from their scores by a model and their labels.

    Labels are class numbers from 0 to C, C for one that the model does not know; to regress they are values. Every
    statistic is total: rows without usable scores count with those of ``otherwise``.

    name : in questions and policies. counted : the array of which the entries add up to the rows. low, high : the range
    of usable scores. sent_as : the type that scores travel in.
    """

    name: ClassVar[str]
    counted: ClassVar[str] = "rows"
    low: ClassVar[float] = 0.0
    high: ClassVar[float] = math.inf
    sent_as: ClassVar[type[np.floating[Any]]] = np.float64

    @classmethod
    @abstractmethod
    def read(cls, classes: int, values: Mapping[str, Any], arrays: Sums, model: Any = None) -> Self:
        """The statistic with the parameters of a question; an error where the ``model`` in it has no such scores."""

    @property
    @abstractmethod
    def arrays(self) -> Mapping[str, Array]:
        """What is summed."""

    @property
    @abstractmethod
    def otherwise(self) -> FloatArray:
        """Scores, in the shape of those of one row, that stand for a row without usable ones."""

    @abstractmethod
    def score(self, model: Any, X: FloatArray, **options: Any) -> FloatArray:
        """Scores (n, ...) of rows (n, p); ``options`` are those of a model that asks its sites."""

    @abstractmethod
    def sums(self, scores: FloatArray, labels: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """The sums over rows with usable scores (n, ...) and labels (n,)."""

    def rows(self, sums: Sums) -> int:
        """Rows that the sums are of."""
        return int(sums[self.counted].sum())

    def parameters(self, *, model: bool) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:  # noqa: ARG002
        """Values and arrays of a question beside its ``model``, or beside scores, that ``read`` takes."""
        return {}, {}

    def usable(self, scores: FloatArray) -> npt.NDArray[np.bool_]:
        """Which rows (n,) have scores in the range that the sums are made for."""
        inside = (scores >= self.low) & (scores <= self.high)  # false of what is not a number
        return np.asarray(inside.all(axis=tuple(range(1, scores.ndim))))

    def check(self, sums: Sums, scores: FloatArray | None = None) -> None:
        """Refuse sums that no rows have, or none with the ``scores`` that a site was sent for its rows."""
        for name, array in self.arrays.items():
            given = sums.get(name)
            kind = "integers" if array.whole else "numbers"
            if given is None or given.shape != array.shape or given.dtype != (np.int64 if array.whole else np.float64):
                shape = "none" if given is None else f"{given.shape} of {given.dtype}"
                raise InputError(f"{name} must be {kind} of shape {array.shape}, got {shape}")
            low = -array.bound if array.signed else 0.0
            if not ((given >= low) & (given <= array.bound)).all():
                most = f"a site tests on at most {MOST_ROWS:,} rows"
                raise InputError(f"{name} must be {kind} from {low:g} to {array.bound:g}: {most}")
        if self.rows(sums) > MOST_ROWS:
            raise InputError(f"a site tests on at most {MOST_ROWS:,} rows, got {self.rows(sums):,}")
        self.check_sums(sums)
        if scores is not None:
            self.check_sent(sums, scores)

    @abstractmethod
    def check_sums(self, sums: Sums) -> None:
        """Refuse sums that contradict each other; each by itself is in its range."""

    def check_sent(self, sums: Sums, scores: FloatArray) -> None:
        """Refuse sums of other rows than those with these scores."""
        if self.rows(sums) != len(scores):
            raise InputError(f"the counts must be of the {len(scores):,} rows that were asked, got {self.rows(sums):,}")


# Questions ----------------------------------------------------------------------------------------------------------


def _parts(task: str) -> Callable[[Payload], list[str]]:
    """What a question of ``task`` asks for: its statistics, with the way they are to travel unless that is clear."""

    def parts(payload: Payload) -> list[str]:
        named, way = payload.values.get("statistics"), way_of(payload)
        if not isinstance(named, Mapping):
            raise Refused("bad question", "statistics must be given by name, with their parameters")
        return [f"{task}:{name}" if way == "clear" else f"{task}:{name}:{way}" for name in sorted(named)]

    return parts


def way_of(payload: Payload) -> str:
    """How the sums of a question are to travel; those of masked sums without noise are asked for as if in the clear."""
    return "shared" if "honest" in payload.values else "noisy" if "privacy" in payload.values else "clear"


def read_statistics(payload: Payload, classes: int, model: Any = None) -> Iterator[HeldOutStatistic]:
    """The statistics in a question, one after the other, or a refusal."""
    for name, values in sorted(payload.values["statistics"].items()):
        kind: type[HeldOutStatistic] = resolve(STATISTICS[name])
        try:
            if not isinstance(values, Mapping):
                raise InputError("the parameters must be given by name")
            yield kind.read(classes, values, _with_prefix(payload.arrays, f"{name}."), model)
        except (KeyError, TypeError, ValueError) as error:
            raise Refused("bad question", f"{name} cannot be followed: {error}") from None


def read_model(site: Site, payload: Payload, rows: int) -> Model:
    """The model in a question that is to predict so many ``rows``, if the site's policy allows one of its size."""
    arrays = _with_prefix(payload.arrays, MODEL)
    site.allow(numbers=sum(int(array.size) for array in payload.arrays.values()))
    model = from_record(Record(arrays, payload.values["model"]))
    if not isinstance(model, Model):
        raise InputError(f"a {type(model).__name__} cannot be tested, expected a model that predicts")
    features = model.mapped_features
    site.allow(features=features, numbers=(rows + model.n_features_in_) * features)
    site.allow(features=max(model.hidden, default=0), steps=len(model.hidden))
    return model


def _with_prefix(arrays: Sums, prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


# Scores and labels --------------------------------------------------------------------------------------------------


def row_scores(statistic: HeldOutStatistic, model: Any, X: FloatArray, *, alone: bool = False) -> FloatArray:
    """Scores (n, ...) of rows X (n, p) by a model that came with a question; NaN for rows that it fails on.

    An asker may choose a model that overflows for some rows. If all rows of the site failed with them, a sum over sites
    would tell which site has such a row. Rows are therefore cut to a public range, and each is scored by itself where
    all together fail, or always (``alone``): then no row moves the scores of another. A model that fails for a row of
    zeros fails whatever the site's rows are, and is refused.
    """
    rows = saturate(X)
    with np.errstate(all="ignore"):
        statistic.score(model, np.zeros((1, rows.shape[1])))
        if not alone and len(rows):
            try:
                return np.array(statistic.score(model, rows))
            except MemoryError:
                raise
            except Exception:
                pass
        scores = np.full((len(rows), *statistic.otherwise.shape), np.nan)
        with single_blas_thread():
            for place in range(len(rows)):
                try:
                    scores[place] = statistic.score(model, rows[place : place + 1])[0]
                except Exception:
                    continue
    return scores


def held_out_sums(
    statistic: HeldOutStatistic, model: Any, X: FloatArray, labels: npt.NDArray[Any]
) -> dict[str, npt.NDArray[Any]]:
    """The sums over rows X (n, p) with ``labels`` (n,), scored by a model that is here."""
    scores = row_scores(statistic, model, X)
    scores[~statistic.usable(scores)] = statistic.otherwise
    with np.errstate(all="ignore"):
        return statistic.sums(scores, labels)


def check_labels_alike(classes: npt.NDArray[Any], rows: Rows, site: str) -> None:
    """Refuse rows labelled by text for a model of numbers, or the other way round; for a regressor, rows of text.

    Labels of the site are not told: what is said here may leave it.
    """
    if not len(classes) and rows.y.dtype.kind not in "biuf":
        raise SchemaMismatch(f"a regressor is tested on numbers, y of site {site!r} is {rows.y.dtype}")
    if not len(rows.y) or not len(classes):
        return
    own, known = ("text" if isinstance(labels[0], str) else "numbers" for labels in (rows.y, classes))
    if own != known:
        raise SchemaMismatch(
            f"labels of site {site!r} are {own}, and the model's classes are {known} such as "
            f"{classes.tolist()[0]!r}; look at the column of labels"
        )


def label_numbers(classes: npt.NDArray[Any], rows: Rows) -> npt.NDArray[Any]:
    """Class numbers (n,) of the labels of rows, C for one that is unknown; without classes the values themselves."""
    return class_numbers(classes, rows.y) if len(classes) else rows.y


def _labels(site: Site, rows: Rows, classes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Labels (n,) of the site's held-out rows, or a refusal where these are of another type than the classes."""
    try:
        check_labels_alike(classes, rows, site.name)
    except SchemaMismatch as error:
        raise Refused("bad labels", str(error)) from None
    return label_numbers(classes, rows)


# Tasks --------------------------------------------------------------------------------------------------------------


@task("test_model", leaves="statistics", under_privacy="released", parts=_parts("test_model"))
def test_model(site: Site, payload: Payload) -> Payload:
    """Sums over the held-out rows, scored by the model that came with the question."""
    if way_of(payload) != "clear":
        answered: Payload = resolve(NOISE)(site, payload)
        return answered
    rows = site.held_out()
    model = read_model(site, payload, len(rows.y))
    classes = np.asarray(() if is_regressor(model) else model.classes_)
    labels = _labels(site, rows, classes)
    answer: dict[str, npt.NDArray[Any]] = {}
    for statistic in read_statistics(payload, len(classes), model):
        site.allow(numbers=len(rows.y) * statistic.otherwise.size)
        sums = held_out_sums(statistic, model, rows.X, labels)
        answer |= {f"{statistic.name}.{name}": array for name, array in sums.items()}
    return Payload(answer)


@task("test_scores", leaves="statistics", parts=_parts("test_scores"))
def test_scores(site: Site, payload: Payload) -> Payload:
    """Sums over the held-out rows, by the scores (n, ...) that came for them, in their order."""
    site.allow(numbers=sum(int(array.size) for array in payload.arrays.values()))
    classes = labels_from_values(payload.values["classes"])
    rows = site.held_out()
    labels = _labels(site, rows, classes)
    answer: dict[str, npt.NDArray[Any]] = {}
    for statistic in read_statistics(payload, len(classes)):
        scores = payload.arrays[f"{statistic.name}.scores"]
        expected = (len(rows.y), *statistic.otherwise.shape)
        if scores.shape != expected or scores.dtype not in (np.float32, np.float64):
            raise Refused("bad question", f"expected scores of shape {expected}, got {scores.shape} of {scores.dtype}")
        if not statistic.usable(scores).all():
            raise Refused("bad question", f"scores must be numbers from {statistic.low:g} to {statistic.high:g}")
        sums = statistic.sums(scores.astype(np.float64), labels)
        answer |= {f"{statistic.name}.{name}": array for name, array in sums.items()}
    return Payload(answer)


@task("held_out_queries", leaves="rows")
def held_out_queries(site: Site, payload: Payload) -> Payload:  # noqa: ARG001  every task has this signature
    """The site's held-out rows, without labels, to be scored by all sites as any query is."""
    return Payload({"X": site.held_out().X.astype(np.float64)})
