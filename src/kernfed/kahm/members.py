"""Sites as a folding model knows them: what all do alike, what each holds, and how their scores become one answer.

Under "min" a single wrong site decides whatever it likes: it says 0 for a class. The k-th smallest of a class of at
least k + 1 holders lies between honest scores, whatever k - 1 of them say. A class of fewer holders is not protected:
of k holders one can suppress it, of fewer a wrong one can claim every query, also for a class that it invented. As a
decision over all classes is only as safe as its least protected class, such a class takes no part in it, unless it is
trusted by name.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from kernfed.base.answer import Answer
from kernfed.base.checks import FloatArray, check_choice
from kernfed.base.fields import check_fields, declared, from_values, to_values
from kernfed.base.labels import ClassIndex
from kernfed.base.threads import single_blas_thread
from kernfed.errors import InputError
from kernfed.kahm.bank import BLOCK
from kernfed.kahm.choice import PARTITIONS, scaled
from kernfed.kahm.folding import MEASURES
from kernfed.kahm.spectrum import DTYPES
from kernfed.kernels.rows import Scaling

if TYPE_CHECKING:
    from kernfed.kahm.model import FoldingModel

AGGREGATES = ("min", "kth")
#: In the place of labels: every class is trusted.
ALL = "all"

#: Labels that are trusted, or "all".
Trusted = Collection[Any] | str


def combine(
    scores: FloatArray,
    holds: npt.NDArray[np.bool_],
    aggregate: str,
    k: int,
    absent: float,
    decides: npt.NDArray[np.bool_] | None = None,
) -> FloatArray:
    """Scores (n, C) of the federation from scores (Q, n, C) by site, of which only those with ``holds`` (Q, C) count.

    "min" is GIKM Definition 3 (18) and SFM Definition 2 (105). "kth" is the k-th smallest among the sites that hold
    the class, or the largest where fewer do. A class that nobody holds scores ``absent``, and one that takes no part,
    where ``decides`` (C,) is False, infinity.
    """
    hidden = np.where(holds[:, None, :], scores, np.inf)
    if aggregate == "min":
        combined = hidden.min(axis=0)
    else:
        place = np.clip(np.minimum(k, holds.sum(axis=0)) - 1, 0, None)
        ordered = np.sort(hidden, axis=0)
        combined = np.take_along_axis(ordered, place[None, None, :], axis=0)[0]
    combined = np.where(holds.any(axis=0), combined, absent)
    return combined if decides is None else np.where(decides, combined, np.inf)


def protects(aggregate: str, k: int) -> bool:
    """Whether wrong sites are to be survived at all: "min", and k = 1, which is the same, protect nothing."""
    return aggregate == "kth" and k > 1


def unprotected(holds: npt.NDArray[np.bool_], aggregate: str, k: int) -> npt.NDArray[np.bool_]:
    """Which classes (C,) k - 1 wrong sites (one at least) can decide: all with "min" or k = 1, else those of at most k.

    Of exactly k holders one suffices: it scores so high that the class is never the nearest.
    """
    if not protects(aggregate, k):
        return np.ones(holds.shape[1], dtype=bool)
    few: npt.NDArray[np.bool_] = holds.sum(axis=0) < k + 1
    return few


def check_trusted(trusted: Any) -> Trusted:
    """Labels as a tuple, or "all"."""
    if isinstance(trusted, str):
        return check_choice(trusted, "trusted_classes", (ALL,))
    if not isinstance(trusted, (list, tuple, set, frozenset, np.ndarray)):
        raise InputError(f"trusted_classes must be labels, or 'all', got {trusted!r}")
    return tuple(trusted.tolist() if isinstance(trusted, np.ndarray) else trusted)


def is_trusted(label: Any, trusted: Trusted) -> bool:
    """Whether a class takes part however few sites hold it; a label may be given as the text of it."""
    return trusted == ALL if isinstance(trusted, str) else label in trusted or str(label) in trusted


def deciding(
    classes: npt.NDArray[Any], holds: npt.NDArray[np.bool_], aggregate: str, k: int, trusted: Trusted = ()
) -> npt.NDArray[np.bool_]:
    """Which classes (C,) take part in a decision: under "kth" those that are protected or trusted, else all."""
    if not protects(aggregate, k):
        return np.ones(len(classes), dtype=bool)
    named = np.array([is_trusted(label, trusted) for label in classes.tolist()], dtype=bool)
    return np.asarray(~unprotected(holds, aggregate, k) | named)


def shared_labels(held: Mapping[str, Iterable[Any]], aggregate: str, k: int, trusted: Trusted = ()) -> list[Any]:
    """Classes of a model of sites that hold ``held``, sorted: under "kth" what one site made up is none.

    At least k sites must share a class, so that k - 1 wrong ones cannot invent it, or it must be trusted.
    """
    counts = Counter(label for labels in held.values() for label in labels)
    needed = k if protects(aggregate, k) else 1
    return sorted(label for label, count in counts.items() if count >= needed or is_trusted(label, trusted))


def exposure(
    names: Collection[Any], total: int, sites: int, aggregate: str, k: int, trusted: Trusted = ()
) -> str | None:
    """Which classes ``names``, of ``total`` that ``sites`` hold, "kth" does not protect, in words.

    None if it protects all, and of "min".
    """
    if aggregate == "min" or not len(names):
        return None
    if k == 1:
        return "with k=1 a single wrong site can decide every class"
    out = [label for label in names if not is_trusted(label, trusted)]
    parts = [
        f"{len(labels)} of {total} classes {what}: {_listed(labels)}"
        for labels, what in (
            (out, "take no part"),
            ([label for label in names if label not in out], "are trusted and can be decided by wrong sites"),
        )
        if labels
    ]
    return f"{', and '.join(parts)}; fewer than k + 1 = {k + 1} of {sites} site(s) hold them"


def _listed(labels: Collection[Any]) -> str:
    shown = [repr(label) for label in labels]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


@dataclass(frozen=True)
class Explanation:
    """Who decided: per query the label, the site that was nearest in that class, its batch, and the score (n,)."""

    label: npt.NDArray[Any]
    site: npt.NDArray[Any]
    batch: npt.NDArray[np.intp]
    score: FloatArray

    @classmethod
    def of(cls, answer: Answer) -> "Explanation":
        """The part of a folding model's answer that says who decided."""
        assert answer.site is not None
        assert answer.batch is not None
        assert answer.score is not None
        return cls(answer.labels, answer.site, answer.batch, answer.score)

    def shares(self) -> dict[str, float]:
        """Each site's share of winning answers, largest first."""
        names, counts = np.unique(self.site, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return {str(names[i]): float(counts[i] / len(self.site)) for i in order}


#: What to do where too few sites hold a class for "kth" to protect it.
TRUST = "let further sites with these classes take part, choose a smaller k, or name the classes in trusted_classes"


@dataclass(frozen=True)
class FoldingParameters:
    """What all sites do alike. ``scale``: how rows and queries are brought to one unit; None takes them as they are."""

    measure: str = declared("distance", choices=MEASURES)
    batch_size: int = declared(1000, at_least=1)
    partition: str = declared("kmeans", choices=PARTITIONS)
    layers: int = declared(1, at_least=1)
    subspace_dim: int | None = declared(None, at_least=1)
    dtype: str = declared("float64", choices=DTYPES)
    aggregate: str = declared("min", choices=AGGREGATES)
    k: int = declared(2, at_least=1)
    seed: int = declared(0, at_least=0)
    scale: Scaling | None = declared(None, omit=True)

    def __post_init__(self) -> None:
        check_fields(self)

    def to_values(self) -> dict[str, Any]:
        """Plain values for messages and files."""
        return to_values(self)

    @classmethod
    def from_values(cls, values: Any) -> "FoldingParameters":
        """Parameters from ``to_values``; those of 0.1 have no scale."""
        return from_values(cls, values, "parameters")

    def scaled(self, rows: FloatArray) -> FloatArray:
        """Rows (n, p), or queries, as the machines know them."""
        return scaled(rows, self.scale)


@dataclass(frozen=True)
class Member:
    """One site as the model knows it: positions of its classes, and the state of its machines the model refers to.

    ``temperature`` is what the site's own rows suggest for probabilities; None where there is one. ``left_out``:
    labels that it holds beside these, and that are no classes of the model. ``counts``: rows of every class that it
    holds, in the order of ``held``; () where it did not tell.
    """

    classes: tuple[int, ...]
    generation: int
    machines: int
    rows: int
    temperature: float | None = None
    left_out: tuple[Any, ...] = ()
    counts: tuple[int, ...] = ()

    def held(self, classes: npt.NDArray[Any]) -> list[Any]:
        """Labels that the site holds, sorted, as its machines are; ``classes`` (C,) are the model's."""
        return sorted([*classes[list(self.classes)].tolist(), *self.left_out])

    def columns(self, classes: npt.NDArray[Any]) -> list[int]:
        """Which of the site's own classes are those in ``self.classes``, in their order."""
        return list(map(int, ClassIndex(self.held(classes)).numbers(classes[list(self.classes)])))


def place_classes(
    members: Mapping[str, Member], held: Mapping[str, Sequence[Any]], parameters: FoldingParameters, trusted: Trusted
) -> tuple[npt.NDArray[Any], dict[str, Member]]:
    """Classes (C,) of a model whose sites hold ``held`` (sorted labels), and the members with their places in them."""
    classes = np.array(shared_labels(held, parameters.aggregate, parameters.k, trusted))
    place = {label: number for number, label in enumerate(classes.tolist())}
    return classes, {
        name: replace(
            member,
            classes=tuple(place[label] for label in held[name] if label in place),
            left_out=tuple(label for label in held[name] if label not in place),
        )
        for name, member in members.items()
    }


@dataclass(frozen=True)
class SiteScores:
    """Scores by site: values (Q, n, C), batch (Q, n, C) that gave them or -1, sites (Q,), and who is missing."""

    values: FloatArray
    batches: npt.NDArray[np.intp]
    sites: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)

    def nearest(
        self, rows: npt.NDArray[np.intp], columns: npt.NDArray[np.intp]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.intp], FloatArray]:
        """Site, batch and score (n,) that came nearest to ``rows`` (n,) in the classes of ``columns`` (n,).

        The batches must have been asked for. A class that no site holds has the site "", batch -1 and infinity.
        """
        batches = self.batches[:, rows, columns]
        scores = np.where(batches >= 0, self.values[:, rows, columns], np.inf)
        first, every = scores.argmin(axis=0), np.arange(len(rows))
        held = (batches >= 0).any(axis=0)
        return (
            np.where(held, np.array(self.sites, dtype=object)[first], ""),
            np.where(held, batches[first, every], -1),
            scores[first, every],
        )


class Connection(Protocol):
    """What a model needs of a federation; ``kernfed.federation.folding.connection`` provides it."""

    def scores(
        self,
        model: "FoldingModel",
        X: FloatArray,
        *,
        explain: bool = False,
        min_replies: int | None = None,
        timeout: float = 600.0,
    ) -> SiteScores:
        """Scores of all members."""

    def saved(self, model: "FoldingModel", path: Any) -> None:
        """Hear that the model was saved; warn where the sites will not remember its machines."""

    def secure_predict(
        self,
        model: "FoldingModel",
        X: FloatArray,
        *,
        scheme: str,
        bits: int,
        min_replies: int | None = None,
        timeout: float = 600.0,
    ) -> npt.NDArray[Any]:
        """Labels by encrypted scores."""

    def forget(self, model: "FoldingModel", site: str, rows: Sequence[int] | None) -> "FoldingModel":
        """Model without a site, or without some of its rows."""

    def add_site(self, model: "FoldingModel", site: str, data: Any) -> "FoldingModel":
        """Model with another site."""

    def add_rows(self, model: "FoldingModel", site: str, X: Any, y: Any, ids: Any) -> "FoldingModel":
        """Model with further rows at a site."""


def project(X: FloatArray, basis: FloatArray | None) -> FloatArray:
    """Rows X (n, p) in the basis (p, k), as (n, k); as they are without one.

    Blocks of one size: no bit depends on the number of rows.
    """
    if basis is None:
        return X
    projected = np.empty((len(X), basis.shape[1]))
    with single_blas_thread():
        for start in range(0, len(X), BLOCK):
            part = X[start : start + BLOCK]
            block = np.zeros((BLOCK, X.shape[1]))
            block[: len(part)] = part
            projected[start : start + BLOCK] = (block @ basis)[: len(part)]
    return projected
