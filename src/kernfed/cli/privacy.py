"""Options of commands that release under differential privacy, and the mechanism they describe."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernfed.errors import InputError

if TYPE_CHECKING:
    from kernfed.data import Table

#: What every mechanism takes, and what each takes beside it. An option that would do nothing is refused.
_ALWAYS = ("epsilon", "label_epsilon")
_TAKES = {
    "element-laplace": ("bounds", "d", "smoothing"),
    "element-staircase": ("bounds", "d", "smoothing"),
    "record-gaussian": ("delta", "radius", "dimension", "smoothing"),
    "record-moments": ("delta", "radius", "dimension", "basis"),
}
NAMES = tuple(_TAKES)
#: Delta of record mechanisms, and where the record's guarantee of element mechanisms is stated.
USUAL_DELTA = 1e-5
#: Coordinates of record-moments, where rows have as many columns.
USUAL_DIMENSION = 64
#: Rows fabricated from the moments of a class, and rows per machine that suit them; rows per machine otherwise.
FABRICATED, USUAL_BATCH = 1000, 100

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
Basis = Annotated[
    str | None,
    typer.Option(help="Public basis of record-moments: random (the default), or dct for images and signals."),
]
Smoothing = Annotated[
    str | None,
    typer.Option(
        help="Steps on the noisy rows of element-* and record-gaussian: a number, none, or coupled_bootstrap "
        "(the default), which decides from noisy rows."
    ),
]
LabelEpsilon = Annotated[
    float | None, typer.Option(help="Randomise labels with this epsilon; the set of classes stays public.")
]


def make_learner(
    given: Mapping[str, Any], table: "Table", settings: Mapping[str, Any], *, batch_size: int | None = None
) -> Any:
    """The ``FoldingLearner`` that options describe for a table; ``batch_size`` None takes what suits the mechanism.

    ``given`` holds privacy and what stands in ``_ALWAYS`` and ``_TAKES``, as far as the command offers it; None stands
    for "not given". ``settings`` are further arguments of the learner.
    """
    import numpy as np

    from kernfed._validation import check_number
    from kernfed.federation import FoldingLearner

    _check_options(given)
    classes = tuple(np.unique(table.y).tolist())  # type: ignore[arg-type]  # commands that learn read labels
    if len(classes) < 2:
        raise InputError(f"the label must have at least 2 classes, every row has {classes[0]!r}")
    if given["privacy"] is None:
        return FoldingLearner(batch_size=USUAL_BATCH if batch_size is None else batch_size, **settings)
    from kernfed.privacy import RandomizedLabels

    usual = FABRICATED if given["privacy"] == "record-moments" else USUAL_BATCH
    own = given.get("label_epsilon")
    labels = None if own is None else RandomizedLabels(check_number(own, "--label-epsilon", above=0), classes)
    return FoldingLearner(
        batch_size=usual if batch_size is None else batch_size,
        privacy=_mechanism(given, table.X.shape[1]),
        labels=labels,
        smoothing=_steps(given.get("smoothing")),
        rows_per_class=FABRICATED,
        **settings,
    )


def _check_options(given: Mapping[str, Any]) -> None:
    """Refuse a mechanism that is not known, one without epsilon, and options that would do nothing."""
    name = given["privacy"]
    if name is not None and name not in NAMES:
        raise InputError(f"--privacy must be one of {', '.join(NAMES)}, got {name!r}")
    for option, value in given.items():
        takers = [one for one in NAMES if option in (*_ALWAYS, *_TAKES[one])]
        if option == "privacy" or value is None or name in takers:
            continue
        shown = f"--{option.replace('_', '-')}"
        if name is None:
            raise InputError(f"{shown} needs --privacy {' or '.join(takers)}; without it, leave {shown} out")
        raise InputError(f"--privacy {name} takes no {shown}, which is for {' or '.join(takers)}; leave it out")
    if name is not None and given["epsilon"] is None:
        raise InputError(f"--privacy {name} needs --epsilon")


def _mechanism(given: Mapping[str, Any], width: int) -> Any:
    """The mechanism for rows of ``width`` columns."""
    from kernfed.privacy import ElementLaplace, ElementStaircase, RecordGaussian, RecordMoments

    name, epsilon, radius = given["privacy"], given["epsilon"], given["radius"]
    if name.startswith("element"):
        low, high = _bounds(name, given["bounds"])
        kind = ElementLaplace if name == "element-laplace" else ElementStaircase
        return kind(epsilon, high - low if given["d"] is None else given["d"], (low, high))
    if radius is None:
        raise InputError(
            f"--privacy {name} needs --radius: a public bound on the L2 norm of a row, known without "
            "looking at the data"
        )
    delta = USUAL_DELTA if given["delta"] is None else given["delta"]
    if name == "record-gaussian":
        return RecordGaussian(epsilon, delta, radius, given["dimension"])
    dimension = min(USUAL_DIMENSION, width) if given["dimension"] is None else given["dimension"]
    return RecordMoments(epsilon, delta, dimension, radius=radius, basis=given["basis"] or "random")


def _bounds(name: str, text: str | None) -> tuple[float, float]:
    if text is None:
        raise InputError(f"--privacy {name} needs --bounds LO,HI: public bounds, known without looking at the data")
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--bounds must be two numbers LO,HI, got {text!r}") from None
    if not -math.inf < low < high < math.inf:  # also where one is NaN
        raise InputError(f"--bounds must be LO,HI with LO < HI, both finite, got {text!r}")
    return low, high


def _steps(smoothing: str | None) -> str | int | None:
    """Smoothing as the learner takes it, which has its own words about "oracle"."""
    if smoothing in (None, "coupled_bootstrap", "oracle"):
        return smoothing or "coupled_bootstrap"
    if smoothing == "none":
        return None
    try:
        return int(smoothing)
    except ValueError:
        raise InputError(
            f"--smoothing must be a number of steps, none or coupled_bootstrap, got {smoothing!r}"
        ) from None


def statement(terms: Any) -> dict[str, Any]:
    """What a release promises, as one JSON object."""
    return {
        "mechanism": terms.request["mechanism"]["kind"],
        "element": terms.element,
        "record": terms.record,
        "promises": terms.promises,
        "spent": dict(terms.spent),
    }
