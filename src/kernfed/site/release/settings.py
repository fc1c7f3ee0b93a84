"""Settings of learners that release with differential privacy or sum under masks, and the mechanism described."""

import math
from typing import Any

from kernfed import privacy  # loads what is used of it when it is used
from kernfed.base.checks import check_choice, check_number
from kernfed.base.plain import read_json
from kernfed.errors import InputError
from kernfed.secure.committee.terms import SECURE
from kernfed.site.fields import Given, Setting

#: What every mechanism takes, and what each takes beside it. A setting that would do nothing is refused.
_ALWAYS = ("epsilon", "label-epsilon", "classes")
_TAKES = {
    "element-laplace": ("bounds", "d", "smoothing"),
    "element-staircase": ("bounds", "d", "smoothing"),
    "record-gaussian": ("delta", "radius", "dimension", "smoothing"),
    "record-moments": ("delta", "radius", "dimension", "basis"),
}
NAMES = tuple(_TAKES)
#: Parameters of mechanisms.
_MECHANISM_SETTINGS = ("epsilon", "delta", "bounds", "d", "radius", "dimension", "basis")
#: Delta of record mechanisms, and where the record's guarantee of element mechanisms is stated.
USUAL_DELTA = 1e-5
#: Coordinates of record-moments, where rows have as many columns.
USUAL_DIMENSION = 64
#: Rows fabricated from the moments of a class, and rows per machine that suit them.
FABRICATED = 1000

PRIVACY = (
    Setting("privacy", f"Release under differential privacy by {', '.join(NAMES)}, or by a mechanism as JSON object."),
    Setting("epsilon", "Epsilon: per element for element-*, per record for record-*.", 0.0),
    Setting("delta", f"Delta of record-*; default {USUAL_DELTA:g}.", 0.0),
    Setting("bounds", "LO,HI: public bounds of every value, for element-*; known without the data."),
    Setting("d", "Change of one element that is protected, for element-*; default HI - LO.", 0.0),
    Setting("radius", "Public bound on a row's L2 norm, for record-*; longer rows shrink.", 0.0),
    Setting(
        "dimension", f"Public projection to so many columns, for record-*; moments: {USUAL_DIMENSION}.", 0, at_least=1
    ),
    Setting(
        "basis",
        "Public basis of record-moments; default random, dct is for images and signals.",
        choices=("random", "dct"),
    ),
    Setting(
        "smoothing",
        "Steps on the noisy rows of element-* and record-gaussian: a number, none, or coupled_bootstrap "
        "(the default), which decides from noisy rows.",
    ),
    Setting("label-epsilon", "Randomise labels with this epsilon, among --classes.", 0.0),
    Setting(
        "classes",
        "All labels there can be, for --label-epsilon: A,B,... or a JSON list. Public, and not read from the data; a "
        "label that is not among them counts as the first.",
    ),
)
#: Of learners whose mechanism is given whole.
MECHANISM = Setting(
    "privacy",
    "Release under differential privacy by a mechanism, as a JSON object with its kind and its parameters.",
    read=lambda text, name: read_mechanism(text, name),
)


def read_mechanism(text: str, name: str) -> Any:
    """The mechanism that a JSON object of ``mechanism_to_values`` names."""
    try:
        values = read_json(text)
    except InputError as error:
        raise InputError(f"{name} must be a JSON object with a mechanism and its parameters: {error}") from None
    return privacy.mechanism_from_values(values)


def release_arguments(given: Given) -> dict[str, Any]:
    """Arguments of a learner that releases rows, with what suits moments; none where nothing is released."""
    name = given.get("privacy")
    if isinstance(name, str) and name.lstrip().startswith("{"):
        extra = next((one for one in _MECHANISM_SETTINGS if given.get(one) is not None), None)
        if extra is not None:
            raise InputError(f"{given.shown('privacy')} as JSON says it all; leave {given.shown(extra)} out")
        return {"privacy": read_mechanism(name, given.shown("privacy")), **_beside(given)}
    _check_settings(given)
    if name is None:
        return {}
    arguments = {"privacy": _mechanism(given), **_beside(given)}
    if name == "record-moments":
        arguments |= {"rows_per_class": FABRICATED, "batch_size": FABRICATED}
    return arguments


def _beside(given: Given) -> dict[str, Any]:
    """What is not the mechanism's: steps of smoothing, and the labels."""
    arguments: dict[str, Any] = {"smoothing": _steps(given)} if given.get("smoothing") is not None else {}
    asked, shown = given.get("label-epsilon"), given.shown("label-epsilon")
    declared = given.get("classes")
    if asked is None:
        if declared is not None:
            raise InputError(f"{given.shown('classes')} is for {shown}; without it, leave it out")
        return arguments
    epsilon = check_number(asked, shown, above=0)
    if declared is None:
        raise InputError(
            f"{shown} needs {given.shown('classes')} A,B,...: all labels there can be, which are public and must not "
            "be read from the data"
        )
    return {**arguments, "labels": privacy.RandomizedLabels(epsilon, declared_classes(given))}


def declared_classes(given: Given) -> tuple[Any, ...]:
    """Declared classes: a JSON list as it is, else numbers where all are whole ones and labels are not text."""
    text, shown = str(given.get("classes")), given.shown("classes")
    if text.lstrip().startswith("["):
        try:
            return tuple(read_json(text))
        except InputError as error:
            raise InputError(f"{shown} must be A,B,... or a JSON list of labels: {error}") from None
    parts = [part.strip() for part in text.split(",")]
    words = any(isinstance(label, str) for label in given.classes or ())
    if not words and all(_is_whole(part) for part in parts):
        return tuple(map(int, parts))
    return tuple(parts)


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdigit()


def _check_settings(given: Given) -> None:
    """Refuse a mechanism that is not known, one without epsilon, and settings that would do nothing."""
    name, chosen = given.get("privacy"), given.shown("privacy")
    if name is not None and name not in NAMES:
        raise InputError(f"{chosen} must be one of {', '.join(NAMES)}, or a JSON object, got {name!r}")
    for setting in PRIVACY[1:]:
        takers = [one for one in NAMES if setting.name in (*_ALWAYS, *_TAKES[one])]
        if given.get(setting.name) is None or name in takers:
            continue
        shown = given.shown(setting.name)
        if name is None:
            raise InputError(f"{shown} needs {chosen} {' or '.join(takers)}; without it, leave {shown} out")
        raise InputError(f"{chosen} {name} takes no {shown}, which is for {' or '.join(takers)}; leave it out")
    if name is not None and given.get("epsilon") is None:
        raise InputError(f"{chosen} {name} needs {given.shown('epsilon')}")


def _mechanism(given: Given) -> Any:
    """The mechanism of a name and its settings."""
    name, epsilon, radius = given.get("privacy"), given.get("epsilon"), given.get("radius")
    kind: Any = privacy.mechanism_class(name)
    if name.startswith("element"):
        low, high = _bounds(given)
        d = given.get("d")
        return kind(epsilon, high - low if d is None else d, (low, high))
    if radius is None:
        raise InputError(
            f"{given.shown('privacy')} {name} needs {given.shown('radius')}: a public bound on the L2 norm of a row, "
            "known without looking at the data"
        )
    delta = USUAL_DELTA if given.get("delta") is None else given.get("delta")
    dimension = given.get("dimension")
    if name == "record-gaussian":
        return kind(epsilon, delta, radius, dimension)
    if dimension is None:
        dimension = USUAL_DIMENSION if given.width is None else min(USUAL_DIMENSION, given.width)
    return kind(epsilon, delta, dimension, radius=radius, basis=_basis(given))


def _basis(given: Given) -> str:
    basis = given.get("basis")
    return "random" if basis is None else check_choice(basis, given.shown("basis"), ("random", "dct"))


def _bounds(given: Given) -> tuple[float, float]:
    text, shown = given.get("bounds"), given.shown("bounds")
    if text is None:
        raise InputError(
            f"{given.shown('privacy')} {given.get('privacy')} needs {shown} LO,HI: public bounds, known without "
            "looking at the data"
        )
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{shown} must be two numbers LO,HI, got {text!r}") from None
    if not -math.inf < low < high < math.inf:  # also where one is NaN
        raise InputError(f"{shown} must be LO,HI with LO < HI, both finite, got {text!r}")
    return low, high


def _steps(given: Given) -> str | int | None:
    """Smoothing as the learner takes it, which refuses "oracle" by itself."""
    text: str = given.get("smoothing")
    if text in ("coupled_bootstrap", "oracle"):
        return text
    if text == "none":
        return None
    try:
        return int(text)
    except ValueError:
        shown = given.shown("smoothing")
        raise InputError(f"{shown} must be a number of steps, none or coupled_bootstrap, got {text!r}") from None


SUM = Setting(
    "sum",
    "secure: sites add up under masks, and nobody sees a part; noise of --privacy is added once for all of them.",
    choices=(SECURE,),
)
