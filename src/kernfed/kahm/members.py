"""Sites as a folding model knows them: what all of them do alike, which classes each holds, and what it answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernfed.base.checks import FloatArray, check_choice, check_count
from kernfed.errors import InputError
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

    measure: str = "distance"
    batch_size: int = 1000
    partition: str = "kmeans"
    layers: int = 1
    subspace_dim: int | None = None
    dtype: str = "float64"
    aggregate: str = "min"
    k: int = 2
    seed: int = 0
    scale: Scaling | None = None

    def __post_init__(self) -> None:
        check_choice(self.measure, "measure", MEASURES)
        check_count(self.batch_size, "batch_size")
        check_choice(self.partition, "partition", PARTITIONS)
        check_count(self.layers, "layers")
        if self.subspace_dim is not None:
            check_count(self.subspace_dim, "subspace_dim")
        check_choice(self.dtype, "dtype", DTYPES)
        check_choice(self.aggregate, "aggregate", AGGREGATES)
        check_count(self.k, "k")
        check_count(self.seed, "seed", at_least=0)

    def to_values(self) -> dict[str, Any]:
        """Plain values for messages and files."""
        values = {name: value for name, value in vars(self).items() if name != "scale"}
        return values if self.scale is None else {**values, "scale": self.scale.to_values()}

    @classmethod
    def from_values(cls, values: Any) -> "FoldingParameters":
        """Parameters from ``to_values``; those of 0.1 have no scale."""
        if not isinstance(values, Mapping) or not set(values) <= set(cls.__dataclass_fields__):
            raise InputError(f"parameters must be {', '.join(cls.__dataclass_fields__)}, got {values!r:.100}")
        scale = values.get("scale")
        return cls(**{**values, "scale": None if scale is None else Scaling.from_values(scale)})

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
        held = self.held(classes)
        return [held.index(label) for label in classes[list(self.classes)].tolist()]


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
