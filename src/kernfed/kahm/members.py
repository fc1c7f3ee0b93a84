"""Sites as a folding model knows them: what all of them do alike, which classes each holds, and what it answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray
from kernfed.base.fields import check_fields, declared, from_values, to_values
from kernfed.base.labels import ClassIndex
from kernfed.kahm.aggregate import AGGREGATES, Trusted, shared_labels
from kernfed.kahm.batches import PARTITIONS
from kernfed.kahm.choice import scaled
from kernfed.kahm.folding import MEASURES
from kernfed.kahm.spectrum import DTYPES
from kernfed.kernels.scaling import Scaling

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
