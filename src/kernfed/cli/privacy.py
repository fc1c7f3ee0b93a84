"""Options of commands that release under differential privacy, and the mechanism they describe."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kernfed.data import Table

NAMES = ("element-laplace", "element-staircase", "record-gaussian", "record-moments")
#: Delta of record mechanisms, and where the record's guarantee of element mechanisms is stated.
USUAL_DELTA = 1e-5
#: Coordinates of record-moments, where rows have as many columns.
USUAL_DIMENSION = 64
#: Rows fabricated from the moments of a class, and rows per machine that suit them.
FABRICATED = 1000

Privacy = Annotated[str | None, typer.Option(help=f"Release under differential privacy by {', '.join(NAMES)}.")]
Epsilon = Annotated[float | None, typer.Option(help="Epsilon: per element for element-*, per record for record-*.")]
Delta = Annotated[float | None, typer.Option(help=f"Delta of record-*; default {USUAL_DELTA:g}.")]
Bounds = Annotated[
    str | None, typer.Option(help="LO,HI: public bounds of every value, for element-*; known without the data.")
]
Change = Annotated[
    float | None, typer.Option("--d", help="Change of one element that is protected, for element-*; default HI - LO.")
]
Radius = Annotated[
    float | None, typer.Option(help="Public bound on a row's L2 norm, for record-*; longer rows shrink.")
]
Dimension = Annotated[
    int | None,
    typer.Option(help=f"Public projection to so many columns, for record-*; moments: {USUAL_DIMENSION}.", min=1),
]
Basis = Annotated[str, typer.Option(help="Public basis of record-moments: random, or dct for images and signals.")]
Smoothing = Annotated[
    str, typer.Option(help="Steps on noisy rows: a number, none, or coupled_bootstrap, which decides from noisy rows.")
]
LabelEpsilon = Annotated[
    float | None, typer.Option(help="Randomise labels with this epsilon; the set of classes stays public.")
]


def make_mechanism(given: Mapping[str, Any], width: int) -> Any:
    """The mechanism that options describe for rows of ``width`` columns, or None without ``privacy``.

    ``given`` holds privacy, epsilon, delta, bounds, d, radius, dimension and basis; None stands for "not given".
    """
    name = given["privacy"]
    if name is None:
        for option in ("epsilon", "delta", "bounds", "d", "radius", "dimension"):
            if given[option] is not None:
                raise ValueError(f"--{option} needs --privacy, one of {', '.join(NAMES)}")
        return None
    if name not in NAMES:
        raise ValueError(f"--privacy must be one of {', '.join(NAMES)}, got {name!r}")
    if given["epsilon"] is None:
        raise ValueError(f"--privacy {name} needs --epsilon")
    return (_element if name.startswith("element") else _record)(name, given, width)


def _element(name: str, given: Mapping[str, Any], width: int) -> Any:  # noqa: ARG001  as the other
    from kernfed.privacy import ElementLaplace, ElementStaircase

    _refuse(name, given, ("delta", "radius", "dimension"))
    if given["bounds"] is None:
        raise ValueError(f"--privacy {name} needs --bounds LO,HI: public bounds, known without looking at the data")
    try:
        low, high = (float(part) for part in given["bounds"].split(","))
    except ValueError:
        raise ValueError(f"--bounds must be two numbers LO,HI, got {given['bounds']!r}") from None
    kind = ElementLaplace if name == "element-laplace" else ElementStaircase
    return kind(given["epsilon"], high - low if given["d"] is None else given["d"], (low, high))


def _record(name: str, given: Mapping[str, Any], width: int) -> Any:
    from kernfed.privacy import RecordGaussian, RecordMoments

    _refuse(name, given, ("bounds", "d"))
    if given["radius"] is None:
        raise ValueError(f"--privacy {name} needs --radius: a public bound on the L2 norm of a row, known without "
                         "looking at the data")  # fmt: skip
    delta = USUAL_DELTA if given["delta"] is None else given["delta"]
    if name == "record-gaussian":
        return RecordGaussian(given["epsilon"], delta, given["radius"], given["dimension"])
    dimension = min(USUAL_DIMENSION, width) if given["dimension"] is None else given["dimension"]
    return RecordMoments(given["epsilon"], delta, dimension, radius=given["radius"], basis=given["basis"])


def _refuse(name: str, given: Mapping[str, Any], options: tuple[str, ...]) -> None:
    for option in options:
        if given[option] is not None:
            raise ValueError(f"--privacy {name} takes no --{option}")


def make_learner(mechanism: Any, table: "Table", settings: Mapping[str, Any], *, batch_size: int | None,
                 smoothing: str, label_epsilon: float | None = None) -> Any:  # fmt: skip
    """A ``FoldingLearner`` for a table; ``batch_size`` None takes what suits the mechanism."""
    from kernfed.federation import FoldingLearner

    if mechanism is None:
        if label_epsilon is not None:
            raise ValueError(f"--label-epsilon needs --privacy, one of {', '.join(NAMES)}")
        return FoldingLearner(batch_size=100 if batch_size is None else batch_size, **settings)
    import numpy as np

    from kernfed.privacy import RandomizedLabels, RecordMoments

    usual = FABRICATED if isinstance(mechanism, RecordMoments) else 100
    labels = None
    if label_epsilon is not None:
        labels = RandomizedLabels(label_epsilon, tuple(np.unique(table.y).tolist()))  # type: ignore[arg-type]
    return FoldingLearner(batch_size=usual if batch_size is None else batch_size, privacy=mechanism, labels=labels,
                          smoothing=_steps(smoothing), rows_per_class=FABRICATED, **settings)  # fmt: skip


def _steps(smoothing: str) -> str | int | None:
    if smoothing == "none":
        return None
    return int(smoothing) if smoothing.isdigit() else smoothing


def statement(terms: Any) -> dict[str, Any]:
    """What a release promises, as one JSON object."""
    return {"mechanism": terms.request["mechanism"]["kind"], "element": terms.element, "record": terms.record,
            "promises": terms.promises, "spent": dict(terms.spent)}  # fmt: skip
